use crate::descriptor::{Codec, Descriptor};
use crate::error::FormatError;
use crate::identity::{Exactness, Identity};
use crate::wire::invalid;
use std::collections::BTreeMap;
use std::ops::Range;

/// KV of some layers at some positions.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRecord {
    /// What the bytes mean.
    pub descriptor: Descriptor,
    /// `descriptor.stored_bytes` bytes.
    pub payload: Vec<u8>,
}

/// A reloadable state of a session at a position.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// What an engine must share to use it.
    pub identity: Identity,
    /// The whole timeline, all of it in the pages.
    pub tokens: Vec<u32>,
    /// Scores of the next token, so that generation goes on without a step.
    pub logits: Option<Vec<f32>>,
    /// All pages, those of one layer range in order of position.
    pub pages: Vec<PageRecord>,
}

impl Checkpoint {
    /// Whether all pages are what the engine exported.
    pub fn exactness(&self) -> Exactness {
        match self.pages.iter().any(|page| page.descriptor.codec != Codec::Raw) {
            true => Exactness::Lossy,
            false => Exactness::Exact,
        }
    }

    /// Checks that the pages cover the tokens and have the bytes they describe.
    ///
    /// # Errors
    /// Names what does not fit.
    pub fn validate(&self) -> Result<(), FormatError> {
        self.validate_ranges()?;
        self.validate_payloads(|_| false)
    }

    pub(crate) fn validate_ranges(&self) -> Result<(), FormatError> {
        check_lengths(self.tokens.len(), self.logits.as_ref().map(Vec::len))?;
        check_pages(self.tokens.len(), self.pages.iter().map(|page| &page.descriptor))
    }

    pub(crate) fn validate_payloads(&self, may_lack: impl Fn(&PageRecord) -> bool) -> Result<(), FormatError> {
        let is_wrong = |page: &&PageRecord| page.payload.len() as u64 != page.descriptor.stored_bytes;
        match self.pages.iter().filter(is_wrong).all(may_lack) {
            true => Ok(()),
            false => Err(invalid("page payload", "has another length than its descriptor says")),
        }
    }
}

/// Checks counts of tokens and logits.
pub(crate) fn check_lengths(tokens: usize, logits: Option<usize>) -> Result<(), FormatError> {
    if tokens == 0 || tokens > i32::MAX as usize {
        return Err(invalid("token count", "is zero or past the largest position"));
    }
    if logits.is_some_and(|count| count == 0 || count > i32::MAX as usize) {
        return Err(invalid("logits count", "is zero or past the largest token"));
    }
    Ok(())
}

/// Checks that each layer range has pages without gap or overlap up to the last of `tokens`, and no layer two ranges.
pub(crate) fn check_pages<'a>(
    tokens: usize,
    descriptors: impl Iterator<Item = &'a Descriptor>,
) -> Result<(), FormatError> {
    let mut groups: BTreeMap<(u32, u32), Range<u32>> = BTreeMap::new();
    for descriptor in descriptors {
        descriptor.validate()?;
        let layers = (descriptor.layers.start, descriptor.layers.end);
        match groups.get_mut(&layers) {
            None => {
                groups.insert(layers, descriptor.tokens.clone());
            }
            Some(covered) if covered.end == descriptor.tokens.start => covered.end = descriptor.tokens.end,
            Some(_) => return Err(invalid("page order", "leaves a gap or overlaps")),
        }
    }
    if groups.is_empty() {
        return Err(invalid("page count", "is zero"));
    }
    if groups.values().any(|covered| covered.end as usize != tokens) {
        return Err(invalid("pages", "do not end with the tokens"));
    }
    let ends = groups.keys().map(|layers| layers.1);
    if ends.zip(groups.keys().skip(1)).any(|(end, next)| next.0 < end) {
        return Err(invalid("layer ranges", "overlap"));
    }
    Ok(())
}

/// Positions at which a checkpoint may be cut: those where every layer range has a page ending, and nothing but the
/// full prefix is needed before.
pub(crate) fn cuts<'a>(descriptors: impl Iterator<Item = &'a Descriptor> + Clone) -> Vec<u32> {
    let mut ends: BTreeMap<u32, usize> = BTreeMap::new();
    let mut groups: BTreeMap<(u32, u32), bool> = BTreeMap::new();
    for descriptor in descriptors {
        *ends.entry(descriptor.tokens.end).or_default() += 1;
        let whole = descriptor.tokens.start == 0;
        let layers = (descriptor.layers.start, descriptor.layers.end);
        let kept = groups.entry(layers).or_insert(whole);
        *kept &= descriptor.components.is_none();
    }
    let last = ends.keys().next_back().copied();
    match groups.values().all(|&kept| kept) {
        true => ends.iter().filter(|(_, count)| **count == groups.len()).map(|(end, _)| *end).collect(),
        false => last.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Component, ElementType};

    fn page(layers: Range<u32>, tokens: Range<u32>) -> Descriptor {
        let bytes = u64::from(tokens.end.saturating_sub(tokens.start)) * 16;
        Descriptor {
            layer_count: layers.end - layers.start,
            layers,
            tokens,
            k_type: ElementType::F16,
            v_type: ElementType::F16,
            k_row_bytes: 8,
            v_row_bytes: 8,
            indexer_row_bytes: 0,
            v_element_bytes: 2,
            v_transposed: false,
            payload_bytes: bytes,
            stored_bytes: bytes,
            codec: Codec::Raw,
            components: None,
        }
    }

    fn check(tokens: usize, pages: &[Descriptor], expected: Option<&str>) {
        let found = check_pages(tokens, pages.iter()).err().map(|error| error.to_string());
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn pages_cover_each_layer_range_up_to_the_last_token() {
        check(64, &[page(0..2, 0..32), page(2..4, 0..64), page(0..2, 32..64)], None);
        check(64, &[page(0..2, 0..32), page(0..2, 33..64)], Some("page order leaves a gap or overlaps"));
        check(64, &[page(0..2, 0..33), page(0..2, 32..64)], Some("page order leaves a gap or overlaps"));
        check(64, &[page(0..2, 32..64), page(0..2, 0..32)], Some("page order leaves a gap or overlaps"));
        check(65, &[page(0..2, 0..64)], Some("pages do not end with the tokens"));
        check(64, &[page(0..2, 0..64), page(1..3, 0..64)], Some("layer ranges overlap"));
        check(64, &[page(0..4, 0..64), page(1..2, 0..64)], Some("layer ranges overlap"));
        check(64, &[], Some("page count is zero"));
    }

    #[test]
    fn a_cut_needs_every_layer_range_and_the_full_prefix() {
        let ends = |pages: &[Descriptor]| cuts(pages.iter());
        assert_eq!(
            ends(&[page(0..2, 0..32), page(2..4, 0..64), page(0..2, 32..64), page(2..4, 64..96), page(0..2, 64..96)]),
            [64, 96]
        );
        assert_eq!(ends(&[page(0..2, 0..32), page(0..2, 32..64), page(2..4, 32..64)]), [64]);
        let mut composite = page(0..2, 0..32);
        composite.components = Some([
            Component { offset: 0, bytes: 512, tokens: 0..32 },
            Component { offset: 512, bytes: 64, tokens: 24..32 },
        ]);
        composite.payload_bytes += 64;
        composite.stored_bytes += 64;
        check(32, std::slice::from_ref(&composite), None);
        assert_eq!(ends(&[composite, page(0..2, 32..64)]), [64]);
    }
}
