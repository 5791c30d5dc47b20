//! What one stage of a split model hands to the next.

use std::ops::Range;

use laneway_session::StepPlan;

/// Activations of a step's rows between two stages, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Version of this layout.
    pub version: u32,
    /// Number of the stage that computed it.
    pub producer: u32,
    /// Layers that are done.
    pub layers: Range<usize>,
    /// Rows.
    pub tokens: usize,
    /// Values of a row.
    pub width: usize,
    /// Hash of the rows' lanes, positions and tokens: two stages that agree on it are at the same place.
    pub frontier: u64,
    /// `[tokens, width]`.
    pub values: Vec<f32>,
}

/// A frame does not fit the step, or frames do not fit each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No frame, or one without rows.
    #[error("a frame without rows")]
    Empty,
    /// Frames that are not of the same kind.
    #[error("frames differ in their {0}")]
    Differ(&'static str),
    /// The values are not rows of that width, or not so many as announced.
    #[error("a frame of {values} values has not {tokens} rows of {width}")]
    Size {
        /// Values there are.
        values: usize,
        /// Rows announced.
        tokens: usize,
        /// Values of a row.
        width: usize,
    },
    /// It was computed for other rows, or by another stage than the one before.
    #[error("the frame is not at the stage's place: {0}")]
    Frontier(&'static str),
}

/// The layout that is written.
pub(crate) const VERSION: u32 = 1;

impl Frame {
    /// Whether its sizes agree.
    ///
    /// # Errors
    /// Names what does not.
    pub fn validate(&self) -> Result<(), FrameError> {
        let (values, tokens, width) = (self.values.len(), self.tokens, self.width);
        if tokens == 0 || width == 0 {
            return Err(FrameError::Empty);
        }
        if tokens.checked_mul(width) != Some(values) {
            return Err(FrameError::Size { values, tokens, width });
        }
        Ok(())
    }

    /// Whether it is what the stage that begins with `layer` needs for a plan's step.
    ///
    /// # Errors
    /// Names what does not fit.
    pub fn fits(&self, plan: &StepPlan, layer: usize) -> Result<(), FrameError> {
        self.validate()?;
        if self.version != VERSION {
            return Err(FrameError::Differ("version"));
        }
        if self.layers.end != layer {
            return Err(FrameError::Frontier("layers are missing or done twice"));
        }
        if self.tokens != plan.rows.len() || self.frontier != frontier(plan) {
            return Err(FrameError::Frontier("other rows"));
        }
        Ok(())
    }

    /// One frame for every run of so many rows.
    ///
    /// # Errors
    /// Runs that are empty or do not add up to the frame.
    pub fn split(&self, runs: &[usize]) -> Result<Vec<Self>, FrameError> {
        self.validate()?;
        if runs.contains(&0) {
            return Err(FrameError::Empty);
        }
        let total = runs.iter().try_fold(0_usize, |sum, run| sum.checked_add(*run));
        if total != Some(self.tokens) {
            return Err(FrameError::Size {
                values: self.values.len(),
                tokens: total.unwrap_or(usize::MAX),
                width: self.width,
            });
        }
        let mut rest = &self.values[..];
        let mut frames = Vec::with_capacity(runs.len());
        for &tokens in runs {
            let (mine, others) = rest.split_at(tokens * self.width);
            frames.push(Self { tokens, values: mine.to_vec(), layers: self.layers.clone(), ..*self });
            rest = others;
        }
        Ok(frames)
    }

    /// The frames' rows after each other, with the frontier of the first.
    ///
    /// # Errors
    /// No frames, or frames that differ in anything but their rows.
    pub fn combine(frames: &[Self]) -> Result<Self, FrameError> {
        let (first, rest) = frames.split_first().ok_or(FrameError::Empty)?;
        first.validate()?;
        let mut whole = first.clone();
        for frame in rest {
            frame.validate()?;
            let kinds = [
                ("version", frame.version == whole.version),
                ("producer", frame.producer == whole.producer),
                ("layers", frame.layers == whole.layers),
                ("width", frame.width == whole.width),
            ];
            if let Some((what, _)) = kinds.iter().find(|(_, agrees)| !agrees) {
                return Err(FrameError::Differ(what));
            }
            let (values, width) = (whole.values.len(), whole.width);
            whole.tokens =
                whole.tokens.checked_add(frame.tokens).ok_or(FrameError::Size { values, tokens: usize::MAX, width })?;
            whole.values.extend_from_slice(&frame.values);
        }
        Ok(whole)
    }
}

/// Where the rows of a step are: a hash of their lanes, positions and tokens.
pub(crate) fn frontier(plan: &StepPlan) -> u64 {
    let fold = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    plan.rows.iter().fold(plan.rows.len() as u64, |hash, row| {
        let token = match row.token {
            laneway_session::Token::Known(token) => u64::from(token),
            laneway_session::Token::Sampled => u64::MAX,
        };
        fold(fold(fold(hash, row.lane as u64), u64::from(row.position)), token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tokens: usize) -> Frame {
        let values = (0..tokens * 4).map(|at| at as f32).collect();
        Frame { version: VERSION, producer: 0, layers: 0..2, tokens, width: 4, frontier: 7, values }
    }

    /// L95
    #[test]
    fn frames_are_split_by_rows_and_come_together_again() {
        let whole = frame(7);
        let parts = whole.split(&[1, 4, 2]).unwrap();
        assert_eq!(parts.iter().map(|part| part.tokens).collect::<Vec<_>>(), [1, 4, 2]);
        assert_eq!(parts[1].values, whole.values[4..20]);
        assert_eq!(Frame::combine(&parts).unwrap(), whole);
    }

    /// L95
    #[test]
    fn frames_that_do_not_fit_are_refused() {
        assert_eq!(frame(7).split(&[3, 0, 4]), Err(FrameError::Empty));
        assert_eq!(frame(7).split(&[]), Err(FrameError::Size { values: 28, tokens: 0, width: 4 }));
        assert_eq!(
            frame(7).split(&[usize::MAX, 8]),
            Err(FrameError::Size { values: 28, tokens: usize::MAX, width: 4 })
        );
        assert_eq!(frame(0).split(&[]), Err(FrameError::Empty));
        assert_eq!(Frame::combine(&[]), Err(FrameError::Empty));
        let short = Frame { tokens: 3, ..frame(2) };
        assert_eq!(short.validate(), Err(FrameError::Size { values: 8, tokens: 3, width: 4 }));
        assert!(Frame { tokens: usize::MAX, ..frame(2) }.validate().is_err());
        let others = [
            ("version", Frame { version: 2, ..frame(2) }),
            ("producer", Frame { producer: 1, ..frame(2) }),
            ("layers", Frame { layers: 0..3, ..frame(2) }),
            ("width", Frame { width: 2, tokens: 4, ..frame(2) }),
        ];
        for (what, other) in others {
            assert_eq!(Frame::combine(&[frame(2), other]), Err(FrameError::Differ(what)));
        }
    }
}
