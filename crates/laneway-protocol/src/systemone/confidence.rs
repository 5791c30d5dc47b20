//! How sure a distribution is, by the formulas of TypeSafe's own adapter.

/// Probabilities that are finite, not negative and add up to 1; at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution(Vec<f64>);

impl Distribution {
    /// Normalises the weights; all zero means uniform. `None` if there are none or one is negative or not finite.
    pub fn new(mut weights: Vec<f64>) -> Option<Self> {
        if weights.is_empty() || weights.iter().any(|weight| !weight.is_finite() || *weight < 0.0) {
            return None;
        }
        let mut total: f64 = weights.iter().sum();
        if total == 0.0 {
            weights.fill(1.0);
            total = weights.len() as f64;
        } else if total.is_infinite() {
            weights.iter_mut().for_each(|weight| *weight /= f64::MAX);
            total = weights.iter().sum();
        }
        weights.iter_mut().for_each(|weight| *weight /= total);
        Some(Self(weights))
    }

    /// The probabilities in their order.
    pub fn probabilities(&self) -> &[f64] {
        &self.0
    }

    /// The index of the largest probability; the first of equals.
    pub fn top(&self) -> usize {
        let better = |best: usize, index: usize| if self.0[index] > self.0[best] { index } else { best };
        (0..self.0.len()).fold(0, better)
    }

    /// The expected index.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.0.iter().enumerate().map(|(index, p)| index as f64 * p).sum();
        sum.clamp(0.0, (self.0.len() - 1) as f64)
    }

    pub(crate) fn choice_confidence(&self) -> f64 {
        if self.0.len() == 1 {
            return 1.0;
        }
        let uniform = 1.0 / self.0.len() as f64;
        ((self.0[self.top()] - uniform) / (1.0 - uniform)).clamp(0.0, 1.0)
    }

    pub(crate) fn score_confidence(&self) -> f64 {
        if self.0.len() == 1 {
            return 1.0;
        }
        let (n, mode) = (self.0.len() as f64, self.top());
        let spread: f64 = self.0.iter().enumerate().map(|(index, p)| p * index.abs_diff(mode) as f64).sum();
        let centre = (n - 1.0) / 2.0;
        let uniform_spread = (0..self.0.len()).map(|index| (index as f64 - centre).abs()).sum::<f64>() / n;
        (1.0 - spread / uniform_spread).clamp(0.0, 1.0)
    }

    pub(crate) fn entropy(&self) -> f64 {
        let sum: f64 = self.0.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum();
        (0.0 - sum).max(0.0)
    }

    fn entropy_confidence(&self) -> f64 {
        if self.0.len() == 1 {
            return 1.0;
        }
        (1.0 - self.entropy() / (self.0.len() as f64).ln()).clamp(0.0, 1.0)
    }
}

/// The top probability, scaled from uniform (0) to certain (1): `(max - 1/n) / (1 - 1/n)`.
///
/// Weights that are no [`Distribution`] give 0, as they do in the functions below.
pub fn choice_confidence(weights: &[f64]) -> f64 {
    of(weights, Distribution::choice_confidence)
}

/// The mean distance from the most probable level, scaled from that of uniform levels (0) to none (1).
pub fn score_confidence(weights: &[f64]) -> f64 {
    of(weights, Distribution::score_confidence)
}

/// The entropy in nats.
pub fn entropy(weights: &[f64]) -> f64 {
    of(weights, Distribution::entropy)
}

/// One minus the entropy relative to that of uniform weights.
pub fn entropy_confidence(weights: &[f64]) -> f64 {
    of(weights, Distribution::entropy_confidence)
}

fn of(weights: &[f64], measure: fn(&Distribution) -> f64) -> f64 {
    Distribution::new(weights.to_vec()).as_ref().map_or(0.0, measure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(measured: f64, expected: f64) -> bool {
        (measured - expected).abs() < 5e-7
    }

    #[test]
    fn choices_agree_with_the_official_adapter() {
        for (weights, official, by_entropy) in [
            (vec![0.84, 0.159, 0.001], 0.760000, 0.594268),
            (vec![0.9, 0.1], 0.800000, 0.531004),
            (vec![0.7, 0.2, 0.1], 0.550000, 0.270153),
            (vec![0.25; 4], 0.0, 0.0),
            (vec![1.0], 1.0, 1.0),
            (vec![0.0, 0.0], 0.0, 0.0),
            (vec![0.0, 1.0, 0.0], 1.0, 1.0),
        ] {
            assert!(close(choice_confidence(&weights), official), "{weights:?}");
            assert!(close(entropy_confidence(&weights), by_entropy), "{weights:?}");
        }
    }

    #[test]
    fn scores_agree_with_the_official_adapter() {
        for (weights, mean, official, by_entropy) in [
            (vec![0.0, 1.0, 0.0], 1.0, 1.0, 1.0),
            (vec![0.1, 0.8, 0.1], 1.0, 0.700000, 0.418328),
            (vec![0.5, 0.0, 0.5], 1.0, 0.0, 0.369070),
            (vec![0.05, 0.1, 0.2, 0.4, 0.25], 2.7, 0.333333, 0.120797),
            (vec![0.3, 0.7], 0.7, 0.400000, 0.118709),
            (vec![3.0], 0.0, 1.0, 1.0),
        ] {
            assert!(close(score_confidence(&weights), official), "{weights:?}");
            assert!(close(entropy_confidence(&weights), by_entropy), "{weights:?}");
            assert!(close(Distribution::new(weights.clone()).unwrap().mean(), mean), "{weights:?}");
        }
    }

    #[test]
    fn a_certain_outcome_has_no_entropy_of_either_sign() {
        assert!(entropy(&[1.0]).is_sign_positive() && entropy(&[0.0, 2.0]).is_sign_positive());
    }

    #[test]
    fn entropy_is_in_nats() {
        assert!(close(entropy(&[1.0, 1.0]), std::f64::consts::LN_2));
        assert_eq!(entropy(&[0.0, 5.0]), 0.0);
    }

    #[test]
    fn what_is_no_distribution_is_refused_and_gives_no_confidence() {
        for weights in [vec![], vec![f64::NAN, 1.0], vec![f64::INFINITY], vec![-0.1, 1.1], vec![1.0, f64::NEG_INFINITY]]
        {
            assert_eq!(Distribution::new(weights.clone()), None, "{weights:?}");
            for measure in [choice_confidence, score_confidence, entropy, entropy_confidence] {
                assert_eq!(measure(&weights), 0.0, "{weights:?}");
            }
        }
    }

    #[test]
    fn what_adds_up_already_is_kept_to_the_last_bit() {
        let weights = vec![0.125, 0.75, 0.125];
        assert_eq!(Distribution::new(weights.clone()).unwrap().probabilities(), weights);
    }

    #[test]
    fn the_first_of_equal_probabilities_is_the_top() {
        assert_eq!(Distribution::new(vec![0.2, 0.4, 0.4]).unwrap().top(), 1);
    }

    proptest! {
        #[test]
        fn any_weights_give_a_distribution_and_measures_in_range(
            weights in prop::collection::vec(prop_oneof![0.0..1.0, Just(0.0), Just(f64::MAX), Just(5e-324)], 1..256)
        ) {
            let distribution = Distribution::new(weights.clone()).unwrap();
            prop_assert!((distribution.probabilities().iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(distribution.probabilities().iter().all(|p| (0.0..=1.0).contains(p)));
            for measure in [choice_confidence, score_confidence, entropy_confidence] {
                prop_assert!((0.0..=1.0).contains(&measure(&weights)));
            }
            prop_assert!(entropy(&weights).is_finite());
        }
    }
}
