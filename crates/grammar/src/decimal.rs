//! Exact decimal numbers: the value of a number as JSON writes it, never through a float.

use std::cmp::Ordering;

/// Digits of a number written without exponent: the largest float has 309 digits, the smallest one 324 behind the point.
pub(crate) const DIGITS_MAX: usize = 400;

/// A decimal number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decimal {
    is_negative: bool,
    /// Significant digits as ASCII, without zeros at either end; empty for zero. Their value is `0.digits` times ten to `exponent`.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// The value of a JSON number. Exponents beyond 64 bits are cut, which [`parts`](Self::parts) refuses anyway.
    pub(crate) fn read(literal: &str) -> Self {
        let (is_negative, rest) = match literal.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, literal),
        };
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let limit = if exponent.starts_with('-') { i64::MIN } else { i64::MAX };
        let exponent: i64 = exponent.parse().unwrap_or(limit);
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [integer, fraction].concat().into_bytes();
        let n_zeros = all.iter().take_while(|&&digit| digit == b'0').count();
        let end = all.iter().rposition(|&digit| digit != b'0').map_or(n_zeros, |last| last + 1);
        let digits = all[n_zeros..end].to_vec();
        if digits.is_empty() {
            return Self { is_negative: false, digits, exponent: 0 };
        }
        let exponent = exponent.saturating_add(integer.len() as i64).saturating_sub(n_zeros as i64);
        Self { is_negative, digits, exponent }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.is_negative
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.exponent >= self.digits.len() as i64
    }

    /// The digits before and behind the point, without sign and without zeros that change nothing; `None` beyond [`DIGITS_MAX`].
    pub(crate) fn parts(&self) -> Option<(String, String)> {
        let max = DIGITS_MAX as i64;
        if self.digits.len() > DIGITS_MAX || !(-max..=max).contains(&self.exponent) {
            return None;
        }
        let digits = String::from_utf8_lossy(&self.digits);
        let (len, point) = (self.digits.len(), self.exponent);
        let zeros = |n: i64| "0".repeat(n.max(0) as usize);
        let parts = if self.is_zero() {
            ("0".to_owned(), String::new())
        } else if point <= 0 {
            ("0".to_owned(), format!("{}{digits}", zeros(-point)))
        } else if point as usize >= len {
            (format!("{digits}{}", zeros(point - len as i64)), String::new())
        } else {
            let (integer, fraction) = digits.split_at(point as usize);
            (integer.to_owned(), fraction.to_owned())
        };
        (parts.0.len() + parts.1.len() <= DIGITS_MAX + 1).then_some(parts)
    }

    /// The shortest text without exponent; `None` beyond [`DIGITS_MAX`].
    pub(crate) fn text(&self) -> Option<String> {
        let (integer, fraction) = self.parts()?;
        let (sign, point) =
            (if self.is_negative { "-" } else { "" }, if fraction.is_empty() { "" } else { "." });
        Some(format!("{sign}{integer}{point}{fraction}"))
    }

    /// The integer, if it is one of at most `max` in magnitude.
    pub(crate) fn to_integer(&self, max: u64) -> Option<i64> {
        let integer = self.text().filter(|_| self.is_integer())?.parse::<i64>().ok()?;
        (integer.unsigned_abs() <= max).then_some(integer)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |decimal: &Self| match (decimal.is_zero(), decimal.is_negative) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => -1,
        };
        let magnitudes = || {
            if self.is_zero() { Ordering::Equal } else { self.exponent.cmp(&other.exponent) }
                .then_with(|| self.digits.cmp(&other.digits))
        };
        match sign(self).cmp(&sign(other)) {
            Ordering::Equal if self.is_negative => magnitudes().reverse(),
            Ordering::Equal => magnitudes(),
            order => order,
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_keep_every_digit() {
        for (literal, text) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0e5", "0"),
            ("1.0", "1"),
            ("10e-1", "1"),
            ("1.5e1", "15"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("18446744073709551616", "18446744073709551616"),
            ("0.10", "0.1"),
            ("123e-5", "0.00123"),
            ("0.05E+2", "5"),
        ] {
            assert_eq!(Decimal::read(literal).text().as_deref(), Some(text), "{literal}");
        }
        assert_eq!(Decimal::read("1e308").text().unwrap().len(), 309);
        assert_eq!(Decimal::read("5e-324").text().unwrap().len(), 326);
        for huge in ["1e400", "1e-401", "1e99999999999999999999", "1e-99999999999999999999"] {
            assert_eq!(Decimal::read(huge).text(), None, "{huge}");
        }
        assert_eq!(Decimal::read("1e99999999999999999999").cmp(&Decimal::read("2")), Ordering::Greater);
        assert_eq!(Decimal::read("9007199254740993").to_integer(u64::MAX), Some(9_007_199_254_740_993));
        assert_eq!(Decimal::read("1.5").to_integer(u64::MAX), None);
    }

    proptest! {
        /// The order is that of integers with the same scale.
        #[test]
        fn the_order_is_that_of_integers(a in -10_000i64..10_000, b in -10_000i64..10_000, scale in 0u32..5) {
            let read = |n: i64| Decimal::read(&format!("{n}e-{scale}"));
            prop_assert_eq!(read(a).cmp(&read(b)), a.cmp(&b));
            prop_assert_eq!(read(a) == read(b), a == b);
        }
    }
}
