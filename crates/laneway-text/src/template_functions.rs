use std::fmt;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The text of a `raise_exception` call, carried as the source of the error it becomes.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

pub(crate) fn raise_exception(message: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
    Err(error.with_source(Refusal(message)))
}

/// JSON as Python's `json.dumps(ensure_ascii=False)` writes it, without escapes for HTML.
pub(crate) fn tojson(state: &State, value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let indent = indent.or(options.get("indent")?);
    for accepted in ["ensure_ascii", "separators", "sort_keys"] {
        options.get::<Option<Value>>(accepted)?;
    }
    options.assert_all_used()?;
    let json = match indent {
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            json(value, PrettyFormatter::with_indent(indent.as_bytes()))
        }
        None => json(value, PythonFormatter),
    };
    let json = json.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    state.consume_fuel(json.len() as u64 / 64)?;
    Ok(json)
}

fn json(value: &Value, formatter: impl Formatter) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
    Ok(String::from_utf8(bytes).expect("serde_json writes UTF-8"))
}

/// Separators as Python writes them: `, ` and `: `.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY_S: i64 = 86_400;

/// A moment in UTC, as the calendar has it.
struct Moment {
    year: i64,
    /// 1 to 12.
    month: i64,
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// 0 is Sunday.
    weekday: i64,
    second_of_day: i64,
}

impl Moment {
    fn at(unix_s: i64) -> Self {
        // Years are counted from March, so that the leap day comes last and 400 years are one cycle.
        let days = unix_s.div_euclid(DAY_S);
        let since_0000_03_01 = days + 719_468;
        let cycle = since_0000_03_01.div_euclid(146_097);
        let day_of_cycle = since_0000_03_01.rem_euclid(146_097);
        let year_of_cycle =
            (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
        let day_from_march = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let month = (month_from_march + 2) % 12 + 1;
        let year = cycle * 400 + year_of_cycle + i64::from(month <= 2);
        let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        Self {
            year,
            month,
            day: day_from_march - (153 * month_from_march + 2) / 5 + 1,
            day_of_year: match month {
                1 | 2 => day_from_march - 305,
                _ => day_from_march + 60 + i64::from(is_leap),
            },
            weekday: (days + 4).rem_euclid(7),
            second_of_day: unix_s.rem_euclid(DAY_S),
        }
    }

    /// What the conversion `letter` writes; `None` if there is no such conversion.
    fn field(&self, letter: char) -> Option<String> {
        let hour = self.second_of_day / 3600;
        let (month, weekday) = (MONTHS[self.month as usize - 1], WEEKDAYS[self.weekday as usize]);
        Some(match letter {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{:02}", self.second_of_day / 60 % 60),
            'S' => format!("{:02}", self.second_of_day % 60),
            'B' => month.to_owned(),
            'b' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{hour:02}:{:02}:{:02}", self.second_of_day / 60 % 60, self.second_of_day % 60),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// `format` in the manner of C's `strftime`, UTC; `%-d` leaves the leading zero out.
pub(crate) fn strftime(format: &str, unix_s: i64) -> Result<String, Error> {
    // Beyond these years the date arithmetic means nothing, and could overflow.
    let moment = Moment::at(unix_s.clamp(-1 << 40, 1 << 40));
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut letter = rest.next();
        let is_bare = letter == Some('-');
        if is_bare {
            letter = rest.next();
        }
        let field = letter.and_then(|letter| moment.field(letter)).ok_or_else(|| {
            let message = format!("the date format `{format}` has an unknown conversion");
            Error::new(ErrorKind::InvalidOperation, message)
        })?;
        let shown = if is_bare { field.trim_start_matches(['0', ' ']) } else { &field };
        out.push_str(if shown.is_empty() { "0" } else { shown });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_strftime_does() {
        let check = |unix_s, format: &str, expected: &str| {
            assert_eq!(strftime(format, unix_s).unwrap(), expected, "{unix_s} {format}");
        };
        check(0, "%Y-%m-%d %H:%M:%S %a %j", "1970-01-01 00:00:00 Thu 001");
        check(1_709_210_096, "%d %b %Y, %A %I:%M %p %j", "29 Feb 2024, Thursday 12:34 PM 060");
        check(1_709_251_200, "%-d %B %y %j 100%%", "1 March 24 061 100%");
        check(1_735_646_400, "%F %j", "2024-12-31 366");
        check(951_782_400, "%F %T", "2000-02-29 00:00:00");
        check(-1, "%F %T", "1969-12-31 23:59:59");
        check(4_107_542_400, "%F %j %a", "2100-03-01 060 Mon");
        check(1_700_000_000, "%-H|%e", "22|14");
    }

    #[test]
    fn unknown_conversions_and_extreme_times_do_not_panic() {
        assert!(strftime("%Q", 0).is_err());
        assert!(strftime("%", 0).is_err());
        assert!(strftime("%Y", i64::MAX).is_ok());
        assert!(strftime("%Y", i64::MIN).is_ok());
    }
}
