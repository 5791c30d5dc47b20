// What sampling sees of one soft-capped logit: penalised by how often its token stood before.
// counts[lane, id]: generated occurrences in the low 31 bits, the top bit set if the token is in the prompt.
struct Lane {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition: f32,
    presence: f32,
    frequency: f32,
    top_k: u32,
    top_logprobs: u32,
    seed_low: u32,
    seed_high: u32,
    penalised: u32,
    unused: u32,
}

fn penalise(lane: Lane, logit: f32, count: u32) -> f32 {
    var value = logit;
    if count != 0u {
        value = select(value * lane.repetition, value / lane.repetition, value > 0.0);
        let generated = count & 0x7fffffffu;
        value -= f32(generated) * lane.frequency + select(0.0, lane.presence, generated > 0u);
    }
    return value;
}
