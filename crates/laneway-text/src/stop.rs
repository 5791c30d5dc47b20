/// Cuts a stream of text at the first of several stop strings.
///
/// Text that may be the beginning of a stop string is held back until it is clear. The result does
/// not depend on how the text is cut into pieces: of all occurrences the one that starts first wins.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    hit: Option<usize>,
}

/// What [`StopMatcher`] lets through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Text that precedes every stop string.
    pub text: String,
    /// The index of the stop string that was hit; once set, no more text comes.
    pub hit: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings among them are ignored.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), hit: None }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.hit.is_some() {
            return StopStep { text: String::new(), hit: self.hit };
        }
        self.held.push_str(piece);
        let beginning = self.first_beginning();
        match self.first_match() {
            Some((at, stop)) if at <= beginning => self.cut(at, stop),
            _ => StopStep { text: self.held.drain(..beginning).collect(), hit: None },
        }
    }

    /// Ends the text and lets through what was held back.
    pub fn finish(&mut self) -> StopStep {
        if let (None, Some((at, stop))) = (self.hit, self.first_match()) {
            return self.cut(at, stop);
        }
        StopStep { text: std::mem::take(&mut self.held), hit: self.hit }
    }

    fn cut(&mut self, at: usize, stop: usize) -> StopStep {
        self.hit = Some(stop);
        let mut text = std::mem::take(&mut self.held);
        text.truncate(at);
        StopStep { text, hit: self.hit }
    }

    fn active(&self) -> impl Iterator<Item = (usize, &str)> {
        let stops = self.stops.iter().map(String::as_str).enumerate();
        stops.filter(|(_, stop)| !stop.is_empty())
    }

    /// Where the held text has its first stop string, and which: the shortest that starts there,
    /// for that one would have been complete first.
    fn first_match(&self) -> Option<(usize, usize)> {
        self.active()
            .filter_map(|(index, stop)| Some((self.held.find(stop)?, stop.len(), index)))
            .min()
            .map(|(at, _, index)| (at, index))
    }

    /// Where the longest end of the held text that begins a stop string starts.
    fn first_beginning(&self) -> usize {
        let longest = self.active().map(|(_, stop)| stop.len()).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        (self.held.ceil_char_boundary(from)..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| {
                let end = &self.held[at..];
                self.active().any(|(_, stop)| stop.len() > end.len() && stop.starts_with(end))
            })
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn streamed(stops: &[String], pieces: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.to_vec());
        let mut text = String::new();
        for piece in pieces {
            text += &matcher.push(piece).text;
        }
        let last = matcher.finish();
        (text + &last.text, last.hit)
    }

    fn whole(stops: &[String], text: &str) -> (String, Option<usize>) {
        for (at, _) in text.char_indices() {
            let starting = |(_, stop): &(usize, &String)| !stop.is_empty() && text[at..].starts_with(*stop);
            let hit = stops.iter().enumerate().filter(starting).min_by_key(|(_, stop)| stop.len());
            if let Some((index, _)) = hit {
                return (text[..at].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn streaming_equals_a_search_of_the_whole(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abé]{0,5}", 0..8),
        ) {
            prop_assert_eq!(streamed(&stops, &pieces), whole(&stops, &pieces.concat()));
        }
    }

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|s| s.to_string()).collect())
    }

    fn step(text: &str, hit: Option<usize>) -> StopStep {
        StopStep { text: text.to_owned(), hit }
    }

    #[test]
    fn text_that_may_begin_a_stop_is_held() {
        let mut matcher = matcher(&["\n\nUser:"]);
        assert_eq!(matcher.push("Hello\n"), step("Hello", None));
        assert_eq!(matcher.push("\nUs"), step("", None));
        assert_eq!(matcher.push("e"), step("", None));
        assert_eq!(matcher.push("ful"), step("\n\nUseful", None));
        assert_eq!(matcher.push("\n\nUser: x"), step("", Some(0)));
        assert_eq!(matcher.push("more"), step("", Some(0)));
        assert_eq!(matcher.finish(), step("", Some(0)));
    }

    #[test]
    fn an_earlier_start_wins_over_an_earlier_end() {
        let mut early = matcher(&["abcd", "bc"]);
        assert_eq!(early.push("xabc"), step("x", None));
        assert_eq!(early.clone().push("d"), step("", Some(0)));
        assert_eq!(early.clone().push("e"), step("a", Some(1)));
        assert_eq!(early.finish(), step("a", Some(1)));
    }

    #[test]
    fn without_stops_everything_passes() {
        let mut matcher = matcher(&[""]);
        assert_eq!(matcher.push("abc"), step("abc", None));
        assert_eq!(matcher.finish(), step("", None));
    }
}
