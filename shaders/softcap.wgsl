// A logit after the model's soft cap, if it has one.
fn capped(logit: f32) -> f32 {
    if p.softcap > 0.0 {
        return p.softcap * tanh(clamp(logit / p.softcap, -15.0, 15.0));
    }
    return logit;
}
