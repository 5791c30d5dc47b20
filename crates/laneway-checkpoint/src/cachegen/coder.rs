//! A 32-bit arithmetic coder over a fixed cumulative table (Witten, Neal, Cleary 1987).

/// Entries of a cumulative table.
pub(super) const TABLE_LEN: usize = 33;
/// The last entry of every table is `1 << TABLE_BITS`.
pub(super) const TABLE_BITS: u32 = 15;
pub(super) const TABLE_TOTAL: u16 = 1 << TABLE_BITS;

pub(super) type Table = [u16; TABLE_LEN];

const HALF: u32 = 1 << 31;
const QUARTER: u32 = 1 << 30;

/// The table of the symbols of one channel; every symbol that occurs has a share.
pub(super) fn table_of(symbols: impl Iterator<Item = u8>) -> Table {
    let mut counts = [0u32; TABLE_LEN - 1];
    let mut total = 0;
    for symbol in symbols {
        counts[usize::from(symbol)] += 1;
        total += 1;
    }
    let mut table = [0; TABLE_LEN];
    let mut sum = 0;
    for (entry, count) in table[1..].iter_mut().zip(counts) {
        sum += count;
        *entry = (sum * u32::from(TABLE_TOTAL) / total.max(1)) as u16;
    }
    table
}

/// The interval of codes that stand for what was coded so far.
struct Interval {
    low: u32,
    high: u32,
}

/// What to do with the leading bit of an interval.
enum Shift {
    /// It is decided.
    Bit(bool),
    /// The next one decides it.
    Pending,
}

impl Interval {
    fn new() -> Self {
        Self { low: 0, high: u32::MAX }
    }

    fn span(&self) -> u64 {
        u64::from(self.high - self.low) + 1
    }

    fn narrow(&mut self, from: u16, to: u16) {
        let span = self.span();
        let base = u64::from(self.low);
        self.high = (base + ((span * u64::from(to)) >> TABLE_BITS) - 1) as u32;
        self.low = (base + ((span * u64::from(from)) >> TABLE_BITS)) as u32;
    }

    fn shift(&mut self) -> Option<Shift> {
        let shift = if self.high < HALF {
            Shift::Bit(false)
        } else if self.low >= HALF {
            Shift::Bit(true)
        } else if self.low >= QUARTER && self.high < HALF + QUARTER {
            self.low -= QUARTER;
            self.high -= QUARTER;
            Shift::Pending
        } else {
            return None;
        };
        self.low <<= 1;
        self.high = (self.high << 1) | 1;
        Some(shift)
    }
}

/// Codes the symbols of one channel.
pub(super) fn encode(symbols: impl Iterator<Item = u8>, table: &Table) -> Vec<u8> {
    let mut interval = Interval::new();
    let mut bits = BitWriter::default();
    let mut pending = 0;
    for symbol in symbols {
        let symbol = usize::from(symbol);
        interval.narrow(table[symbol], table[symbol + 1]);
        while let Some(shift) = interval.shift() {
            match shift {
                Shift::Bit(bit) => bits.push_with(bit, std::mem::take(&mut pending)),
                Shift::Pending => pending += 1,
            }
        }
    }
    bits.push_with(interval.low >= QUARTER, pending + 1);
    bits.bytes
}

/// Decodes `out.len()` symbols; any stream gives some, all of them with a share in the table.
pub(super) fn decode(stream: &[u8], table: &Table, out: &mut [u8]) {
    let mut interval = Interval::new();
    let mut bits = BitReader { stream, at: 0 };
    let mut value = (0..32).fold(0, |value, _| (value << 1) | bits.next());
    for symbol in out {
        let span = interval.span();
        let offset = u64::from(value.wrapping_sub(interval.low)) + 1;
        let target = (((offset << TABLE_BITS) - 1) / span) as u16;
        let found = table.partition_point(|&entry| entry <= target).clamp(1, TABLE_LEN - 1) - 1;
        interval.narrow(table[found], table[found + 1]);
        while let Some(shift) = interval.shift() {
            if matches!(shift, Shift::Pending) {
                value = value.wrapping_sub(QUARTER);
            }
            value = (value << 1) | bits.next();
        }
        *symbol = found as u8;
    }
}

#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    used: u32,
}

impl BitWriter {
    fn push(&mut self, bit: bool) {
        if self.used.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(bit) << (7 - self.used % 8);
        }
        self.used += 1;
    }

    /// A bit, then `opposite` times the other one.
    fn push_with(&mut self, bit: bool, opposite: u32) {
        self.push(bit);
        (0..opposite).for_each(|_| self.push(!bit));
    }
}

struct BitReader<'a> {
    stream: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    /// The next bit, zero past the end.
    fn next(&mut self) -> u32 {
        let byte = self.stream.get(self.at / 8).copied().unwrap_or(0);
        let bit = (byte >> (7 - self.at % 8)) & 1;
        self.at += 1;
        u32::from(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// L88: one stream per channel gives back its symbols.
        #[test]
        fn symbols_survive(symbols in prop::collection::vec(0u8..31, 0..257)) {
            let table = table_of(symbols.iter().copied());
            let stream = encode(symbols.iter().copied(), &table);
            let mut out = vec![0; symbols.len()];
            decode(&stream, &table, &mut out);
            prop_assert_eq!(out, symbols);
        }

        /// L90: no stream makes the decoder panic or invent a symbol without a share.
        #[test]
        fn any_stream_gives_symbols_of_the_table(stream in prop::collection::vec(any::<u8>(), 0..300), symbols in prop::collection::vec(0u8..31, 1..40)) {
            let table = table_of(symbols.iter().copied());
            let mut out = vec![0; 256];
            decode(&stream, &table, &mut out);
            prop_assert!(out.iter().all(|symbol| symbols.contains(symbol)));
        }
    }

    #[test]
    fn a_constant_channel_takes_one_byte() {
        let table = table_of([7; 256].into_iter());
        assert_eq!(encode([7; 256].into_iter(), &table).len(), 1);
    }
}
