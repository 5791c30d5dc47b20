//! Answers of `GET /v1/models`: one body for OpenAI's and for System One's clients.

use serde::Serialize;

/// Names by which System One's clients ask for whatever decision model is served.
pub const DECISION_ALIASES: [&str; 3] = ["jev-latest", "jev-preview", "openjev-latest"];

/// The list of served models, in both shapes at once.
#[derive(Clone, Debug, Serialize)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    pub data: Vec<ModelCard>,
    /// System One's view of the same models.
    pub models: Vec<ModelSummary>,
}

/// A model as OpenAI's clients read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelCard {
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    pub owned_by: &'static str,
    /// Longest context in tokens, under the name that routers read.
    pub max_model_len: usize,
}

/// A model as System One's clients read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelSummary {
    pub name: String,
    pub description: String,
    /// `YYYY-MM-DD`.
    pub release_date: String,
}

/// What there is to say about a served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    pub id: String,
    pub description: String,
    /// Unix time in seconds; also the release date where System One asks for one.
    pub created: u64,
    /// Longest context in tokens.
    pub context_length: usize,
}

impl ModelInfo {
    /// The OpenAI view.
    pub fn card(&self) -> ModelCard {
        ModelCard {
            id: self.id.clone(),
            object: "model",
            created: self.created,
            owned_by: "laneway",
            max_model_len: self.context_length,
        }
    }

    fn summary(&self) -> ModelSummary {
        ModelSummary { name: self.id.clone(), description: self.description.clone(), release_date: date(self.created) }
    }
}

impl ModelList {
    /// The list of these models, in the given order.
    pub fn new(models: &[ModelInfo]) -> Self {
        Self {
            object: "list",
            data: models.iter().map(ModelInfo::card).collect(),
            models: models.iter().map(ModelInfo::summary).collect(),
        }
    }
}

/// The UTC day of a Unix time, by counting days from 1 March of year 0.
fn date(unix_s: u64) -> String {
    // The year 9999, so that the arithmetic stays in range.
    let days = (unix_s.min(253_402_300_799) / 86_400) as i64 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_dates_follow_the_calendar() {
        for (unix_s, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_164_800, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (1_735_689_600, "2025-01-01"),
            (u64::MAX, "9999-12-31"),
        ] {
            assert_eq!(date(unix_s), expected);
        }
    }
}
