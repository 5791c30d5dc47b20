use crate::agenda::{Item, Kind};

/// The orders in which outcomes are shown, the item's own first; at most `most`, all different.
///
/// Options and sides are rotated by fractions of their number in van der Corput's order. A scale stays a scale: it is
/// shown upwards and downwards.
pub(crate) fn orders(item: &Item, most: u32) -> Vec<Vec<usize>> {
    let count = item.outcomes.len();
    let most = most.max(1) as usize;
    if item.kind == Kind::Score {
        let ways = [(0..count).collect(), (0..count).rev().collect()];
        return ways.into_iter().take(most.min(count)).collect();
    }
    let mut offsets: Vec<usize> = Vec::new();
    // Van der Corput's first 2^k points hit each of up to 2^k equal intervals.
    for index in 0..(count as u32).next_power_of_two() {
        let offset = (van_der_corput(index) * count as f64) as usize;
        if offsets.len() < most && !offsets.contains(&offset) {
            offsets.push(offset);
        }
    }
    offsets.into_iter().map(|offset| (0..count).map(|place| (place + offset) % count).collect()).collect()
}

/// The bits of the index mirrored at the binary point.
fn van_der_corput(index: u32) -> f64 {
    f64::from(index.reverse_bits()) / 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agenda::Outcome;

    fn check(kind: Kind, count: usize, most: u32, expected_firsts: &[usize]) {
        let item = Item { kind, instructions: None, outcomes: vec![Outcome::default(); count], alone: false };
        let orders = orders(&item, most);
        let firsts: Vec<usize> = orders.iter().map(|order| order[0]).collect();
        assert_eq!(firsts, expected_firsts, "{kind:?} {count} {most}");
        for mut order in orders {
            order.sort_unstable();
            assert!(order.into_iter().eq(0..count));
        }
    }

    #[test]
    fn rotations_spread_out_and_do_not_repeat() {
        check(Kind::Choice, 4, 1, &[0]);
        check(Kind::Choice, 4, 8, &[0, 2, 1, 3]);
        check(Kind::Choice, 5, 8, &[0, 2, 1, 3, 4]);
        check(Kind::Choice, 100, 4, &[0, 50, 25, 75]);
        check(Kind::Choice, 1, 8, &[0]);
        check(Kind::Noul, 2, 8, &[0, 1]);
    }

    #[test]
    fn a_scale_is_only_turned_round() {
        check(Kind::Score, 5, 1, &[0]);
        check(Kind::Score, 5, 8, &[0, 4]);
        check(Kind::Score, 1, 8, &[0]);
    }
}
