//! A tile: up to 256 rows of quantised values.
//!
//! Tag `LWCT`, u8 bins, zero byte, u16 rows, u32 channels, u32 stream bytes; per row its largest magnitude (f32); per
//! channel 33 cumulative frequencies (u16, up to 32 768); per channel the bytes of its stream (u16); the streams.

use super::coder::{self, TABLE_LEN, TABLE_TOTAL, Table};
use super::{Bins, Element};
use crate::error::FormatError;
use crate::wire::{Fields, invalid};
use half::f16;

/// Rows of a tile.
pub(super) const MAX_ROWS: usize = 256;
/// Values of a tile.
pub(super) const MAX_VALUES: usize = 1 << 24;

const TAG: &[u8; 4] = b"LWCT";
const TABLE_BYTES: usize = TABLE_LEN * 2;

/// Quantises and codes `rows * channels` values.
///
/// # Errors
/// A value that is not finite.
pub(super) fn encode(values: &[f32], channels: usize, bins: Bins) -> Result<Vec<u8>, FormatError> {
    let rows = values.len() / channels;
    let mut maxima = Vec::with_capacity(rows);
    let mut symbols = Vec::with_capacity(values.len());
    for row in values.chunks_exact(channels) {
        if !row.iter().all(|value| value.is_finite()) {
            return Err(invalid("value", "is not finite"));
        }
        let maximum = row.iter().fold(0f32, |maximum, value| maximum.max(value.abs()));
        maxima.push(maximum);
        symbols.extend(row.iter().map(|value| quantise(*value, maximum, bins)));
    }
    let mut tables = Vec::with_capacity(channels * TABLE_BYTES);
    let mut lengths = Vec::with_capacity(channels * 2);
    let mut streams = Vec::new();
    for channel in 0..channels {
        let column = || symbols[channel..].iter().step_by(channels).copied();
        let table = coder::table_of(column());
        let stream = coder::encode(column(), &table);
        tables.extend(table.iter().flat_map(|entry| entry.to_le_bytes()));
        lengths.extend((stream.len() as u16).to_le_bytes());
        streams.extend(stream);
    }
    let mut out = Vec::with_capacity(16 + rows * 4 + tables.len() + lengths.len() + streams.len());
    out.extend(TAG);
    out.extend([bins as u8, 0]);
    out.extend((rows as u16).to_le_bytes());
    out.extend((channels as u32).to_le_bytes());
    out.extend((streams.len() as u32).to_le_bytes());
    out.extend(maxima.iter().flat_map(|maximum| maximum.to_le_bytes()));
    out.extend(tables);
    out.extend(lengths);
    out.extend(streams);
    Ok(out)
}

fn quantise(value: f32, maximum: f32, bins: Bins) -> u8 {
    let largest = f32::from(bins.largest());
    let level = if maximum == 0.0 { 0.0 } else { (value / maximum * largest).round() };
    (level + largest).clamp(0.0, 2.0 * largest) as u8
}

/// A checked tile.
#[derive(Clone, Debug)]
pub(super) struct Tile<'a> {
    pub rows: usize,
    pub channels: usize,
    bins: Bins,
    maxima: Vec<f32>,
    tables: &'a [u8],
    lengths: &'a [u8],
    streams: &'a [u8],
}

impl<'a> Tile<'a> {
    /// Checks a tile that is all of `bytes`.
    pub fn parse(bytes: &'a [u8], element: Element) -> Result<Self, FormatError> {
        let mut fields = Fields::new(bytes, "tile");
        if fields.take(4)? != TAG {
            return Err(FormatError::NotOurs { expected: "tile" });
        }
        let bins = match fields.u8()? {
            16 => Bins::Sixteen,
            32 => Bins::ThirtyTwo,
            _ => return Err(invalid("bins", "are neither 16 nor 32")),
        };
        if fields.u8()? != 0 {
            return Err(invalid("reserved bytes", "are not zero"));
        }
        let (rows, channels) = (usize::from(fields.u16()?), fields.u32()? as usize);
        let stream_bytes = fields.u32()? as usize;
        if rows == 0 || rows > MAX_ROWS || channels == 0 || channels > MAX_VALUES / rows {
            return Err(invalid("tile", "has too few or too many values"));
        }
        let maxima: Vec<f32> = fields
            .take(rows * 4)?
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        let bound = match element {
            Element::F16 => f16::MAX.to_f32(),
            Element::F32 => f32::MAX,
        };
        if !maxima.iter().all(|maximum| (0.0..=bound).contains(maximum)) {
            return Err(invalid("row maximum", "is negative or not finite"));
        }
        let tables = fields.take(channels * TABLE_BYTES)?;
        if !tables.chunks_exact(TABLE_BYTES).all(|table| is_table(&read_table(table), bins)) {
            return Err(invalid("cumulative table", "does not rise from 0 to its total"));
        }
        let lengths = fields.take(channels * 2)?;
        let streams = fields.take(stream_bytes)?;
        if lengths.chunks_exact(2).map(length).sum::<usize>() != stream_bytes {
            return Err(invalid("stream lengths", "do not add up"));
        }
        fields.end()?;
        Ok(Self { rows, channels, bins, maxima, tables, lengths, streams })
    }

    /// Decodes channel by channel: `put(row, channel, value)`.
    pub fn decode(&self, mut put: impl FnMut(usize, usize, f32)) {
        let largest = self.bins.largest();
        let mut symbols = vec![0; self.rows];
        let mut streams = self.streams;
        let channels = self.tables.chunks_exact(TABLE_BYTES).zip(self.lengths.chunks_exact(2));
        for (channel, (table, len)) in channels.enumerate() {
            let (stream, rest) = streams.split_at(length(len));
            streams = rest;
            coder::decode(stream, &read_table(table), &mut symbols);
            for (row, (symbol, maximum)) in symbols.iter().zip(&self.maxima).enumerate() {
                let level = f32::from(*symbol) - f32::from(largest);
                put(row, channel, level / f32::from(largest) * maximum);
            }
        }
    }
}

fn length(bytes: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn read_table(bytes: &[u8]) -> Table {
    std::array::from_fn(|entry| u16::from_le_bytes([bytes[entry * 2], bytes[entry * 2 + 1]]))
}

/// Whether a table rises from 0 to its total at the last symbol of the bins.
fn is_table(table: &Table, bins: Bins) -> bool {
    let symbols = 2 * usize::from(bins.largest()) + 1;
    table[0] == 0 && table.is_sorted() && table[symbols..].iter().all(|&entry| entry == TABLE_TOTAL)
}
