//! Dates as notes, chats and calendars write them, in seconds since 1970.

/// The seconds since 1970 (UTC) of `2024-05-01`, `20240501`, `2024-05-01T12:30`, `2024-05-01 12:30:05Z`,
/// `2024-05-01 12:30:05 +0200` or `20240501T123005+02:00`. A time without a zone counts as UTC. `None` for other text and for dates
/// that do not exist.
pub fn parse_date(text: &str) -> Option<i64> {
    let mut rest = text.trim().as_bytes();
    let year = digits(&mut rest, 4)?;
    let month = separated(&mut rest, b"-/.", 2)?;
    let day = separated(&mut rest, b"-/.", 2)?;
    let days = days_since_1970(year, month, day)?;
    let mut seconds = days * 86_400;
    if let Some(time) = rest.strip_prefix(b"T").or_else(|| rest.strip_prefix(b" ")) {
        rest = time;
        let hour = digits(&mut rest, 2)?;
        let minute = separated(&mut rest, b":", 2)?;
        let second = separated(&mut rest, b":", 2).unwrap_or(0);
        // A leap second counts as the next second.
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        seconds += hour * 3600 + minute * 60 + second;
        if let Some(fraction) = rest.strip_prefix(b".") {
            rest = fraction.trim_ascii_start();
            let n_digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            rest = &rest[n_digits..];
        }
        rest = rest.trim_ascii_start();
        if let [sign @ (b'+' | b'-'), zone @ ..] = rest {
            rest = zone;
            let offset = digits(&mut rest, 2)? * 3600 + separated(&mut rest, b":", 2).unwrap_or(0) * 60;
            seconds -= if *sign == b'+' { offset } else { -offset };
        } else if let [b'Z' | b'z', ..] = rest {
            rest = &rest[1..];
        }
    }
    rest.is_empty().then_some(seconds)
}

/// A number of exactly `n` digits.
fn digits(rest: &mut &[u8], n: usize) -> Option<i64> {
    let (number, after) = rest.split_at_checked(n)?;
    if !number.iter().all(u8::is_ascii_digit) {
        return None;
    }
    *rest = after;
    Some(number.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
}

/// A number after an optional separator. Takes nothing if there is none.
fn separated(rest: &mut &[u8], separators: &[u8], n: usize) -> Option<i64> {
    let mut after = match *rest {
        [first, after @ ..] if separators.contains(first) => after,
        unseparated => unseparated,
    };
    let number = digits(&mut after, n)?;
    *rest = after;
    Some(number)
}

/// Days of a date (Hinnant's civil calendar: years begin in March).
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let n_days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=n_days).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_seconds() {
        assert_eq!(parse_date("1970-01-01"), Some(0));
        assert_eq!(parse_date("2000-02-29"), Some(951_782_400));
        assert_eq!(parse_date("20240229T235959"), Some(1_709_251_199));
        assert_eq!(parse_date(" 2026-11-21 19:30:05Z "), Some(1_795_289_405));
        assert_eq!(parse_date("2026-11-21T19:30:05.123456+01:30"), Some(1_795_289_405 - 5400));
        assert_eq!(parse_date("2026-11-21T19:30-0100"), Some(1_795_289_400 + 3600));
        for wrong in
            ["", "2024", "2023-02-29", "2024-13-01", "2024-01-00", "2024-01-01T24:00", "2024-01-01x", "é"]
        {
            assert_eq!(parse_date(wrong), None, "{wrong}");
        }
    }
}
