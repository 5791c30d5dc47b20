use super::tile::{self, MAX_ROWS, MAX_VALUES, Tile};
use super::{Element, Region};
use crate::error::FormatError;
use crate::wire::{Fields, invalid};
use half::f16;
use std::ops::Range;

const TAG: &[u8; 4] = b"LWCG";
const RECORD_BYTES: usize = 52;

const F16: u8 = 1;
const EXACT: u8 = 2;
const F16_TRANSPOSED: u8 = 3;
const F32: u8 = 4;
const F32_TRANSPOSED: u8 = 5;

/// The archive of a page, or `None` if it would not be smaller.
///
/// # Errors
/// Regions that overlap or leave the page, or values in them that are not finite.
pub fn encode(page: &[u8], regions: &[Region]) -> Result<Option<Vec<u8>>, FormatError> {
    let mut sorted: Vec<(Range<usize>, &Region)> = Vec::with_capacity(regions.len());
    for region in regions {
        sorted.push((region_bytes(region).filter(|bytes| bytes.end <= page.len()).ok_or(outside())?, region));
    }
    sorted.sort_by_key(|(bytes, _)| bytes.start);
    let mut out = Vec::new();
    out.extend(TAG);
    out.extend((page.len() as u64).to_le_bytes());
    out.extend([0; 4]);
    let mut records = 0u32;
    let mut covered = 0;
    for (bytes, region) in sorted {
        if bytes.start < covered {
            return Err(invalid("regions", "overlap"));
        }
        records += put_exact(&mut out, page, covered..bytes.start);
        records += put_region(&mut out, &page[bytes.clone()], region)?;
        covered = bytes.end;
    }
    records += put_exact(&mut out, page, covered..page.len());
    out[12..16].copy_from_slice(&records.to_le_bytes());
    Ok((out.len() < page.len()).then_some(out))
}

fn outside() -> FormatError {
    invalid("region", "is empty, too wide or outside of the page")
}

fn region_bytes(region: &Region) -> Option<Range<usize>> {
    let values = region.tokens.checked_mul(region.channels).filter(|&values| values > 0)?;
    let bytes = values.checked_mul(region.element.bytes())?;
    (region.channels <= MAX_VALUES).then_some(region.offset..region.offset.checked_add(bytes)?)
}

fn put_exact(out: &mut Vec<u8>, page: &[u8], range: Range<usize>) -> u32 {
    if range.is_empty() {
        return 0;
    }
    put_record(out, EXACT, 1, [range.start, range.len(), 0, 0, 0, range.len()]);
    out.extend(&page[range]);
    1
}

fn put_region(out: &mut Vec<u8>, bytes: &[u8], region: &Region) -> Result<u32, FormatError> {
    let kind = match (region.element, region.transposed) {
        (Element::F16, false) => F16,
        (Element::F16, true) => F16_TRANSPOSED,
        (Element::F32, false) => F32,
        (Element::F32, true) => F32_TRANSPOSED,
    };
    let rows = MAX_ROWS.min(MAX_VALUES / region.channels);
    let mut values = Vec::new();
    let mut records = 0;
    for start in (0..region.tokens).step_by(rows) {
        let count = rows.min(region.tokens - start);
        values.clear();
        for token in start..start + count {
            let places = (0..region.channels).map(|channel| place(region, token, channel));
            values.extend(places.map(|at| read(bytes, at, region.element)));
        }
        let tile = tile::encode(&values, region.channels, region.bins)?;
        let decoded = count * region.channels * region.element.bytes();
        let fields = [region.offset, decoded, count, start, region.tokens, tile.len()];
        put_record(out, kind, region.element.bytes() as u8, fields);
        out.extend(tile);
        records += 1;
    }
    Ok(records)
}

fn place(region: &Region, token: usize, channel: usize) -> usize {
    match region.transposed {
        false => token * region.channels + channel,
        true => channel * region.tokens + token,
    }
}

fn read(bytes: &[u8], at: usize, element: Element) -> f32 {
    match element {
        Element::F16 => f16::from_le_bytes([bytes[at * 2], bytes[at * 2 + 1]]).to_f32(),
        Element::F32 => {
            let at = at * 4;
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        }
    }
}

fn write(bytes: &mut [u8], at: usize, element: Element, value: f32) {
    match element {
        Element::F16 => bytes[at * 2..at * 2 + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        Element::F32 => bytes[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes()),
    }
}

fn put_record(out: &mut Vec<u8>, kind: u8, element_bytes: u8, fields: [usize; 6]) {
    out.extend([kind, element_bytes, 0, 0]);
    out.extend(fields.iter().flat_map(|field| (*field as u64).to_le_bytes()));
}

/// Decodes an archive of a page of `decoded_bytes`.
///
/// # Errors
/// Anything but a well-formed archive of exactly so many bytes.
pub fn decode(archive: &[u8], decoded_bytes: u64) -> Result<Vec<u8>, FormatError> {
    let records = parse(archive, decoded_bytes)?;
    let bytes = usize::try_from(decoded_bytes).map_err(|_| invalid("decoded size", "does not fit memory"))?;
    let mut page = vec![0; bytes];
    records.iter().for_each(|record| record.write_to(&mut page));
    Ok(page)
}

/// Decodes an archive of exactly `page`.
///
/// # Errors
/// As [`decode`], with `page` left as it is.
pub fn decode_into(archive: &[u8], page: &mut [u8]) -> Result<(), FormatError> {
    let records = parse(archive, page.len() as u64)?;
    records.iter().for_each(|record| record.write_to(page));
    Ok(())
}

/// A checked record.
enum Record<'a> {
    Exact { offset: usize, bytes: &'a [u8] },
    Tile { region: Region, start: usize, tile: Tile<'a> },
}

impl Record<'_> {
    fn write_to(&self, page: &mut [u8]) {
        match self {
            Self::Exact { offset, bytes } => page[*offset..*offset + bytes.len()].copy_from_slice(bytes),
            Self::Tile { region, start, tile } => {
                let page = &mut page[region.offset..];
                tile.decode(|row, channel, value| {
                    write(page, place(region, start + row, channel), region.element, value)
                });
            }
        }
    }

    /// The bytes of the page that the record decodes to.
    fn covered(&self) -> impl Iterator<Item = Range<usize>> {
        let (first, step, len, count) = match self {
            Self::Exact { offset, bytes } => (*offset, 0, bytes.len(), 1),
            Self::Tile { region, start, tile } => {
                let element = region.element.bytes();
                let first = region.offset + place(region, *start, 0) * element;
                match region.transposed {
                    false => (first, 0, tile.rows * tile.channels * element, 1),
                    true => (first, region.tokens * element, tile.rows * element, tile.channels),
                }
            }
        };
        (0..count).map(move |column| first + column * step..first + column * step + len)
    }
}

/// Checks all of an archive.
fn parse(archive: &[u8], decoded_bytes: u64) -> Result<Vec<Record<'_>>, FormatError> {
    let mut fields = Fields::new(archive, "archive");
    if fields.take(4)? != TAG {
        return Err(FormatError::NotOurs { expected: "CacheGen archive" });
    }
    if fields.u64()? != decoded_bytes {
        return Err(invalid("decoded size", "is not that of the page"));
    }
    let page_bytes = usize::try_from(decoded_bytes).map_err(|_| invalid("decoded size", "does not fit memory"))?;
    let count = fields.u32()? as usize;
    if count > fields.left() / RECORD_BYTES {
        return Err(invalid("record count", "does not fit the archive"));
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        records.push(parse_record(&mut fields, page_bytes)?);
    }
    fields.end()?;
    let mut covered: Vec<Range<usize>> = records.iter().flat_map(Record::covered).collect();
    covered.sort_by_key(|range| range.start);
    let end = covered.iter().try_fold(0, |end, range| (range.start == end).then_some(range.end));
    match end == Some(page_bytes) {
        true => Ok(records),
        false => Err(invalid("records", "leave a gap or overlap")),
    }
}

fn parse_record<'a>(fields: &mut Fields<'a>, page_bytes: usize) -> Result<Record<'a>, FormatError> {
    let (kind, element_bytes) = (fields.u8()?, fields.u8()?);
    if fields.u16()? != 0 {
        return Err(invalid("reserved bytes", "are not zero"));
    }
    let mut size = || -> Result<usize, FormatError> {
        usize::try_from(fields.u64()?).map_err(|_| invalid("record field", "does not fit memory"))
    };
    let [offset, decoded, count, start, total] = [size()?, size()?, size()?, size()?, size()?];
    let payload_bytes = size()?;
    let payload = fields.take(payload_bytes)?;
    let (element, transposed) = match kind {
        EXACT => {
            let inside = offset.checked_add(decoded).is_some_and(|end| end <= page_bytes);
            let plain = (element_bytes, count, start, total) == (1, 0, 0, 0);
            return match inside && plain && decoded == payload_bytes && decoded > 0 {
                true => Ok(Record::Exact { offset, bytes: payload }),
                false => Err(invalid("exact record", "does not fit the page or its payload")),
            };
        }
        F16 => (Element::F16, false),
        F16_TRANSPOSED => (Element::F16, true),
        F32 => (Element::F32, false),
        F32_TRANSPOSED => (Element::F32, true),
        _ => return Err(invalid("record kind", "is not known")),
    };
    let tile = Tile::parse(payload, element)?;
    let bins = super::Bins::Sixteen;
    let region = Region { offset, tokens: total, channels: tile.channels, element, transposed, bins };
    let fits = usize::from(element_bytes) == element.bytes()
        && count == tile.rows
        && start.checked_add(count).is_some_and(|end| end <= total)
        && decoded == tile.rows * tile.channels * element.bytes()
        && region_bytes(&region).is_some_and(|bytes| bytes.end <= page_bytes);
    match fits {
        true => Ok(Record::Tile { region, start, tile }),
        false => Err(invalid("tile record", "does not fit the page or its tile")),
    }
}
