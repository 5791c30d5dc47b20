//! How a model samples when the request does not say.

use laneway_files::{Family, ModelConfig};

/// A model maker's advice; what is not here is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsualSampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Mass of the likeliest tokens that are kept.
    pub top_p: f32,
    /// Number of likeliest tokens that are kept; 0 keeps all.
    pub top_k: u32,
}

/// Advice by family. SmolLM2's makers say 0.2, but at 135M parameters and four bits the second likeliest token is often
/// the start of babble, so the likeliest is taken.
pub fn usual_sampling(config: &ModelConfig) -> UsualSampling {
    match config.family {
        Family::Llama if config.name.to_lowercase().contains("smollm") => {
            UsualSampling { temperature: 0.0, top_p: 1.0, top_k: 0 }
        }
        Family::Qwen3 => UsualSampling { temperature: 0.6, top_p: 0.95, top_k: 20 },
        Family::Llama => UsualSampling { temperature: 0.6, top_p: 0.9, top_k: 0 },
        Family::Gemma3 | Family::Gemma4 | Family::DiffusionGemma => {
            UsualSampling { temperature: 1.0, top_p: 0.95, top_k: 64 }
        }
    }
}
