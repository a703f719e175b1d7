//! The date and time in chat templates.

use refrain_kernels::{SystemTime, UNIX_EPOCH};

/// A date and a time of day without a time zone, for `strftime_now` and `date_string`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChatDate {
    year: i64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u32,
    /// From 0 (Sunday).
    weekday: usize,
    seconds: u32,
}

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;
/// The months, in English.
pub const MONTHS: [&str; 12] = [
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
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
/// The range of four-digit years, 0 to 9999, in seconds since 1970.
const SECONDS_MIN: i64 = -62_167_219_200;
const SECONDS_MAX: i64 = 253_402_300_799;

impl ChatDate {
    /// The system clock's time in UTC. For local time, add the time zone's offset to the seconds and call
    /// [`ChatDate::from_unix`].
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // A clock before 1970 is wrong, so its exact value does not matter.
        Self::from_unix(since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)))
    }

    /// The time `seconds` after midnight of 1 January 1970. Times outside the years 0 to 9999 are clamped to the
    /// first or last second of that range.
    pub fn from_unix(seconds: i64) -> Self {
        let seconds = seconds.clamp(SECONDS_MIN, SECONDS_MAX);
        let days = seconds.div_euclid(SECONDS_PER_DAY);
        let (year, month, day) = civil_from_days(days);
        Self {
            year,
            month: month as usize - 1,
            day: day as u32,
            // 1 January 1970 was a Thursday.
            weekday: (days + 4).rem_euclid(7) as usize,
            seconds: seconds.rem_euclid(SECONDS_PER_DAY) as u32,
        }
    }

    /// Midnight of a day. `None` if the calendar has no such day.
    pub fn from_ymd(year: i64, month: u32, day: u32) -> Option<Self> {
        if !(0..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        // Days from 1 March to the first day of each later month: 30.6 days a month, rounded.
        let years = if month <= 2 { year - 1 } else { year };
        let shifted = i64::from((month + 9) % 12);
        let day_of_year = (153 * shifted + 2) / 5 + i64::from(day) - 1;
        let leap_days = years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
        let days = years * 365 + leap_days + day_of_year - DAYS_TO_EPOCH;
        let date = Self::from_unix(days * SECONDS_PER_DAY);
        (date.month + 1 == month as usize && date.day == day).then_some(date)
    }

    /// Python's `strftime` with English names. Unknown directives are written unchanged.
    pub fn format(&self, format: &str) -> String {
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let (month, weekday) = (MONTHS[self.month], DAYS[self.weekday]);
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let Some(directive) = chars.next() else {
                out.push('%');
                break;
            };
            match directive {
                'Y' => out.push_str(&format!("{:04}", self.year)),
                'y' => out.push_str(&format!("{:02}", self.year % 100)),
                'm' => out.push_str(&format!("{:02}", self.month + 1)),
                'd' => out.push_str(&format!("{:02}", self.day)),
                'e' => out.push_str(&format!("{:2}", self.day)),
                'b' | 'h' => out.push_str(&month[..3]),
                'B' => out.push_str(month),
                'a' => out.push_str(&weekday[..3]),
                'A' => out.push_str(weekday),
                'w' => out.push_str(&self.weekday.to_string()),
                'H' => out.push_str(&format!("{hour:02}")),
                'I' => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
                'M' => out.push_str(&format!("{minute:02}")),
                'S' => out.push_str(&format!("{second:02}")),
                'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
                'F' => out.push_str(&format!("{:04}-{:02}-{:02}", self.year, self.month + 1, self.day)),
                'T' => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
                '%' => out.push('%'),
                other => out.extend(['%', other]),
            }
        }
        out
    }
}

/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_EPOCH: i64 = 719_468;
/// Days of 400 years, the period of the calendar.
const DAYS_PER_ERA: i64 = 146_097;

/// Year, month and day in the Gregorian calendar, for a day counted from 1 January 1970. Years begin in March here,
/// so the leap day is the last day of a year.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_eight_centuries_follows_the_one_before() {
        let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let first = ChatDate::from_ymd(1600, 1, 1).unwrap();
        let (mut year, mut month, mut day, mut weekday) = (1600, 1, 1, first.weekday);
        for _ in 0..2 * DAYS_PER_ERA {
            let date = ChatDate::from_ymd(year, month, day).unwrap();
            assert_eq!((date.year, date.month + 1, date.day), (year, month as usize, day));
            assert_eq!(date.weekday, weekday);
            weekday = (weekday + 1) % 7;
            let n_days = match month {
                2 => 28 + u32::from(is_leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > n_days {
                (day, month) = (1, month + 1);
                assert_eq!(ChatDate::from_ymd(year, month - 1, n_days + 1), None);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }

    #[test]
    fn known_times() {
        let format = "%Y-%m-%d %A %a %B %b %e %y %H:%M:%S %I %p %F %T %w %% %q %";
        assert_eq!(
            ChatDate::from_unix(0).format(format),
            "1970-01-01 Thursday Thu January Jan  1 70 00:00:00 12 AM 1970-01-01 00:00:00 4 % %q %"
        );
        let date = ChatDate::from_unix(1_721_999_045);
        assert_eq!(date.format("%d %b %Y, %A %T %I%p"), "26 Jul 2024, Friday 13:04:05 01PM");
        assert_eq!(ChatDate::from_ymd(2024, 7, 26).unwrap().format("%F %T"), "2024-07-26 00:00:00");
        assert_eq!(ChatDate::from_unix(i64::MAX).format("%F"), "9999-12-31");
        assert_eq!(ChatDate::from_unix(i64::MIN).format("%F"), "0000-01-01");
        assert_eq!([ChatDate::from_ymd(2023, 2, 29), ChatDate::from_ymd(2024, 13, 1)], [None; 2]);
        assert!(ChatDate::now().year >= 2024);
    }
}
