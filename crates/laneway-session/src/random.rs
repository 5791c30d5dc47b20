//! The generator behind canvases: portable, so that a seed means the same everywhere.

/// Sebastiano Vigna's SplitMix64: 64 bits of state, one step a draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts at a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A token below `vocabulary`, all about equally likely.
    pub fn token(&mut self, vocabulary: u32) -> u32 {
        (((self.next() >> 32) * u64::from(vocabulary)) >> 32) as u32
    }

    /// A number from 0 up to, not including, 1, of 24 bits: exact in `f32`.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_matches_published_values() {
        let mut rng = SplitMix64::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([rng.next(), rng.next(), rng.next()], expected);
    }

    #[test]
    fn draws_stay_within_their_ranges() {
        let mut rng = SplitMix64::new(u64::MAX);
        for _ in 0..1000 {
            assert!(rng.token(3) < 3);
            assert!((0.0..1.0).contains(&rng.unit()));
        }
    }
}
