//! The clock of responses.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use refrain::ChatDate;

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    since_1970().as_secs()
}

/// The time in the form of RFC 3339, to the microsecond.
pub(crate) fn now() -> String {
    let since = since_1970();
    format!("{}.{:06}Z", date(since.as_secs()), since.subsec_micros())
}

/// A time in the form of RFC 3339.
pub(crate) fn timestamp(unix_time: u64) -> String {
    format!("{}Z", date(unix_time))
}

fn date(seconds: u64) -> String {
    ChatDate::from_unix(i64::try_from(seconds).unwrap_or(i64::MAX)).format("%FT%T")
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_rfc_3339() {
        assert_eq!(timestamp(1_700_000_000), "2023-11-14T22:13:20Z");
        let now = now();
        assert_eq!((now.len(), now.as_bytes()[19]), (27, b'.'), "{now}");
    }
}
