// What the kernels of a draft share: z = logit / temperature, and statistics of z over parts of the vocabulary.
struct Draft {
    temperature: f32,
    draw: f32,
}

/// Statistics over a chunk of the vocabulary.
struct Part {
    high: f32, // largest z
    mass: f32, // sum of exp(z - high)
    moment: f32, // sum of (z - high) · exp(z - high)
    second: f32, // second largest z
    best: u32, // token of the largest, the lowest on ties
    first: u32, // first token of the chunk
    count: u32, // tokens of the chunk
    unused: u32,
}

/// What all parts of a row give, and where its candidate is to be sought.
struct Summary {
    high: f32, // largest z
    mass: f32, // sum of exp(z - high)
    left: f32, // what exp(z - high) must add up to within the candidate's chunk
    first: u32, // the chunk's first token
    count: u32, // its tokens
}

const NEVER: f32 = -3.0e38;

/// Statistics of a and b together; the chunk stays a's.
fn merged(a: Part, b: Part) -> Part {
    let high = max(a.high, b.high);
    let keep_a = exp(a.high - high);
    let keep_b = exp(b.high - high);
    let b_leads = b.high > a.high || (b.high == a.high && b.best < a.best);
    let moment_a = keep_a * (a.moment + a.mass * (a.high - high));
    let moment_b = keep_b * (b.moment + b.mass * (b.high - high));
    let second = max(max(a.second, b.second), min(a.high, b.high));
    let mass = a.mass * keep_a + b.mass * keep_b;
    return Part(high, mass, moment_a + moment_b, second, select(a.best, b.best, b_leads), a.first, a.count, 0u);
}
