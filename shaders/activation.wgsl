// The gates of gated MLPs; ACTIVATION is 0 for silu, 1 for gelu (tanh form).
fn activate(x: f32) -> f32 {
    if ACTIVATION == 0u {
        return x / (1.0 + exp(-x));
    }
    let inner = 0.7978845608 * (x + 0.044715 * x * x * x);
    // tanh overflows on some adapters for large arguments; past 15 it is 1 in f32.
    return 0.5 * x * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
}
