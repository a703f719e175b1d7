//! Sets of numbers as regular expressions of their JSON texts, exact to the last digit.
//!
//! The compiler of llguidance computes with floats and leaves a bound in or out by its digits, so this crate replaces its expressions
//! by these. A bounded number is written without exponent, and zero without sign.

use std::panic::AssertUnwindSafe;

use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use llguidance::panic_utils::catch_unwind;

use crate::decimal::Decimal;

/// Largest numerator of `multipleOf`, written as a fraction of a power of ten: the automaton has a state for each remainder.
pub(crate) const MULTIPLE_MAX: u32 = 10_000;

/// Maximum digits of `multipleOf` behind the point: the automaton computes with nine times this power of ten in 32 bits.
pub(crate) const MULTIPLE_DIGITS_MAX: usize = 8;

/// Work of a check whether an expression matches nothing.
const EMPTY_FUEL: u64 = 300_000;

/// A bound of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) value: Decimal,
    pub(crate) is_inclusive: bool,
}

/// The numbers between two bounds, or the multiples among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) lower: Option<Bound>,
    pub(crate) upper: Option<Bound>,
    pub(crate) is_integer: bool,
    /// The number is a multiple of `.0` times ten to `-.1`.
    pub(crate) multiple_of: Option<(u32, u32)>,
}

/// Numerator and digits behind the point of a `multipleOf`; `None` if the automaton cannot count with it.
pub(crate) fn multiple(value: &Decimal) -> Option<(u32, u32)> {
    let (integer, fraction) = value.parts()?;
    let numerator: u32 = [integer.as_str(), &fraction].concat().parse().ok()?;
    let fits = !value.is_negative()
        && (1..=MULTIPLE_MAX).contains(&numerator)
        && fraction.len() <= MULTIPLE_DIGITS_MAX;
    fits.then_some((numerator, fraction.len() as u32))
}

impl Range {
    /// Whether a number is in the set.
    pub(crate) fn contains(&self, number: &Decimal) -> bool {
        let above = self.lower.as_ref().is_none_or(|bound| match number.cmp(&bound.value) {
            std::cmp::Ordering::Greater => true,
            order => order.is_eq() && bound.is_inclusive,
        });
        let below = self.upper.as_ref().is_none_or(|bound| match number.cmp(&bound.value) {
            std::cmp::Ordering::Less => true,
            order => order.is_eq() && bound.is_inclusive,
        });
        above && below && (!self.is_integer || number.is_integer()) && self.is_multiple(number)
    }

    fn is_multiple(&self, number: &Decimal) -> bool {
        let Some((numerator, n_digits)) = self.multiple_of else { return true };
        let Some((integer, fraction)) = number.parts() else { return false };
        let n_digits = n_digits as usize;
        if fraction.len() > n_digits {
            return false;
        }
        let scaled = format!("{integer}{fraction:0<n_digits$}");
        let remainder = |rest: u64, digit: u8| (rest * 10 + u64::from(digit - b'0')) % u64::from(numerator);
        scaled.bytes().fold(0, remainder) == 0
    }

    /// The texts of the numbers; `None` if a bound has too many digits.
    pub(crate) fn regex(&self) -> Option<RegexAst> {
        let mut all = if self.is_integer {
            vec![rx("-?(0|[1-9][0-9]*)")]
        } else if self.lower.is_none() && self.upper.is_none() && self.multiple_of.is_none() {
            vec![rx(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")]
        } else {
            vec![rx(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")]
        };
        if self.lower.is_some() || self.upper.is_some() {
            // A zero with a sign would be another text for a number that has one.
            let mut positive = vec![rx(r"[0-9]+(\.[0-9]+)?")];
            let mut negative = vec![at_least(&Decimal::read("0"), false)?];
            if let Some(Bound { value, is_inclusive }) = &self.lower {
                if value.is_negative() {
                    negative.push(at_most(value, *is_inclusive)?);
                } else {
                    positive.push(at_least(value, *is_inclusive)?);
                    negative.push(RegexAst::NoMatch);
                }
            }
            if let Some(Bound { value, is_inclusive }) = &self.upper {
                if value.is_negative() {
                    negative.push(at_least(value, *is_inclusive)?);
                    positive.push(RegexAst::NoMatch);
                } else {
                    positive.push(at_most(value, *is_inclusive)?);
                }
            }
            let negative = RegexAst::Concat(vec![rx("-"), RegexAst::And(negative)]);
            all.push(RegexAst::Or(vec![RegexAst::And(positive), negative]));
        }
        if let Some((numerator, n_digits)) = self.multiple_of {
            all.push(RegexAst::Concat(vec![rx("-?"), RegexAst::MultipleOf(numerator, n_digits)]));
        }
        Some(RegexAst::And(all))
    }

    /// Whether the set has no number; `None` if that takes too long to find out.
    pub(crate) fn is_empty(&self) -> Option<bool> {
        let has = |bound: &Option<Bound>| bound.as_ref().is_some_and(|bound| self.contains(&bound.value));
        let is_open = self.multiple_of.is_none() && (self.lower.is_none() || self.upper.is_none());
        if is_open || has(&self.lower) || has(&self.upper) {
            return Some(false);
        }
        is_empty(&self.regex()?)
    }
}

/// Whether an expression matches nothing; `None` if that takes too long to find out.
pub(crate) fn is_empty(regex: &RegexAst) -> Option<bool> {
    catch_unwind(AssertUnwindSafe(|| Ok(matcher(regex).map(|mut regex| regex.always_empty())))).ok()?
}

/// The automaton of an expression; `None` if it is too complex.
pub(crate) fn matcher(regex: &RegexAst) -> Option<Regex> {
    let mut builder = RegexBuilder::new();
    let root = builder.mk(regex).ok()?;
    builder.into_regex_limited(root, EMPTY_FUEL).ok()
}

fn rx(text: &str) -> RegexAst {
    RegexAst::Regex(text.to_owned())
}

/// Digits of which `0.digits` may be followed by any further ones.
const ANY: &str = "[0-9]*";

/// Magnitudes of at least that of `bound`, or above it.
fn at_least(bound: &Decimal, is_inclusive: bool) -> Option<RegexAst> {
    let (integer, fraction) = bound.parts()?;
    let fraction_regex = match (fraction.is_empty(), is_inclusive) {
        (true, true) => rx(r"(\.[0-9]+)?"),
        (true, false) => rx(r"\.[0-9]*[1-9][0-9]*"),
        (false, _) => {
            let last = if is_inclusive { rx(ANY) } else { rx("[0-9]*[1-9][0-9]*") };
            RegexAst::Concat(vec![rx(r"\."), digits(&fraction, Side::Above, last)])
        }
    };
    let equal = RegexAst::Concat(vec![RegexAst::Literal(integer.clone()), fraction_regex]);
    let longer = format!("[1-9][0-9]{{{},}}", integer.len());
    let same_length = RegexAst::And(vec![
        rx("(0|[1-9][0-9]*)"),
        digits(&integer, Side::Above, RegexAst::NoMatch),
        rx(&format!("[0-9]{{{}}}", integer.len())),
    ]);
    let larger = RegexAst::Concat(vec![RegexAst::Or(vec![rx(&longer), same_length]), rx(r"(\.[0-9]+)?")]);
    Some(RegexAst::Or(vec![equal, larger]))
}

/// Magnitudes of at most that of `bound`, or below it.
fn at_most(bound: &Decimal, is_inclusive: bool) -> Option<RegexAst> {
    let (integer, fraction) = bound.parts()?;
    let fraction_regex = match (fraction.is_empty(), is_inclusive) {
        (true, true) => rx(r"(\.0+)?"),
        (true, false) => RegexAst::NoMatch,
        (false, _) => {
            let last = if is_inclusive { rx("0*") } else { RegexAst::NoMatch };
            let behind = RegexAst::Concat(vec![rx(r"\."), digits(&fraction, Side::Below, last)]);
            RegexAst::Or(vec![RegexAst::EmptyString, behind])
        }
    };
    let equal = RegexAst::Concat(vec![RegexAst::Literal(integer.clone()), fraction_regex]);
    let shorter = match integer.len() - 1 {
        0 => RegexAst::NoMatch,
        n => rx(&format!("0|[1-9][0-9]{{0,{}}}", n - 1)),
    };
    let same_length = RegexAst::And(vec![
        rx("(0|[1-9][0-9]*)"),
        digits(&integer, Side::Below, RegexAst::NoMatch),
        rx(&format!("[0-9]{{{}}}", integer.len())),
    ]);
    let smaller = RegexAst::Concat(vec![RegexAst::Or(vec![shorter, same_length]), rx(r"(\.[0-9]+)?")]);
    Some(RegexAst::Or(vec![equal, smaller]))
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Above,
    Below,
}

/// Digits behind a point that are above or below `bound`, whose last digit is not zero; `last` follows all digits of the bound. A text that
/// ends inside the bound is below it.
fn digits(bound: &str, side: Side, last: RegexAst) -> RegexAst {
    bound.bytes().enumerate().rev().fold(last, |rest, (place, digit)| {
        let digit = digit - b'0';
        let is_last = place + 1 == bound.len();
        let other = match side {
            Side::Above if digit < 9 => rx(&format!("[{}-9]{ANY}", digit + 1)),
            Side::Below if digit > 0 => rx(&format!("[0-{}]{ANY}", digit - 1)),
            _ => RegexAst::NoMatch,
        };
        let rest = match side {
            Side::Below if !is_last => RegexAst::Or(vec![RegexAst::EmptyString, rest]),
            _ => rest,
        };
        RegexAst::Or(vec![other, RegexAst::Concat(vec![rx(&digit.to_string()), rest])])
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compiled(range: &Range) -> Regex {
        let mut builder = RegexBuilder::new();
        let root = builder.mk(&range.regex().expect("few digits")).expect("an expression");
        builder.to_regex(root)
    }

    fn bound(text: &str, is_inclusive: bool) -> Option<Bound> {
        Some(Bound { value: Decimal::read(text), is_inclusive })
    }

    /// Bounds with signs, equal beginnings, and values one digit apart.
    const VALUES: [&str; 22] = [
        "0", "0.5", "0.05", "0.54", "0.55", "0.545", "1", "1.5", "1.05", "9", "9.9", "10", "10.01", "11",
        "99.5", "100", "-0.5", "-0.55", "-1", "-1.5", "-10", "-100.25",
    ];

    /// Texts of numbers without exponent, in several forms.
    fn candidates() -> Vec<String> {
        let mut all = Vec::new();
        for integer in ["0", "1", "8", "9", "10", "11", "12", "98", "99", "100", "101", "110", "999"] {
            for fraction in [
                "", "0", "00", "01", "05", "049", "051", "4", "5", "50", "500", "501", "49", "54", "545",
                "5450", "544", "55", "6", "9", "90", "99", "25", "251", "249",
            ] {
                let point = if fraction.is_empty() { "" } else { "." };
                all.push(format!("{integer}{point}{fraction}"));
                all.push(format!("-{integer}{point}{fraction}"));
            }
        }
        all
    }

    /// What the expression of a range does with a text, against the comparison of decimals.
    fn check(range: &Range, regex: &mut Regex, text: &str) {
        let number = Decimal::read(text);
        let is_signed_zero = number.is_zero() && text.starts_with('-');
        let is_number_form = !range.is_integer || !text.contains('.');
        let n_digits = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        // A multiple has one text: with all its digits behind the point, or with none.
        let is_other_form = range.multiple_of.is_some_and(|(_, max)| n_digits != max as usize);
        let is_matched = regex.is_match(text);
        let is_inside = range.contains(&number) && is_number_form;
        if is_matched {
            assert!(is_inside, "{text} is outside {range:?}");
        } else if !is_signed_zero && !is_other_form {
            assert!(!is_inside, "{text} is inside {range:?}");
        }
    }

    #[test]
    fn every_combination_of_bounds() {
        let candidates = candidates();
        let sides = |value: &'static str| [bound(value, true), bound(value, false)];
        let all: Vec<Option<Bound>> = VALUES.iter().flat_map(|value| sides(value)).chain([None]).collect();
        for lower in &all {
            for upper in &all {
                for is_integer in [false, true] {
                    let range =
                        Range { lower: lower.clone(), upper: upper.clone(), is_integer, multiple_of: None };
                    let mut regex = compiled(&range);
                    candidates.iter().for_each(|text| check(&range, &mut regex, text));
                }
            }
        }
    }

    #[test]
    fn bounds_of_integers_and_floats_are_exact() {
        for edge in [
            "9007199254740991",
            "9007199254740992",
            "9007199254740993",
            "9223372036854775806",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "179769313486231570000000000000000001",
        ] {
            for sign in ["", "-"] {
                let edge = format!("{sign}{edge}");
                let (last, rest) = (edge.as_bytes()[edge.len() - 1] - b'0', &edge[..edge.len() - 1]);
                for is_inclusive in [true, false] {
                    for (lower, upper) in [
                        (bound(&edge, is_inclusive), None),
                        (None, bound(&edge, is_inclusive)),
                        (bound(&edge, true), bound(&edge, true)),
                    ] {
                        let range = Range { lower, upper, is_integer: true, multiple_of: None };
                        let mut regex = compiled(&range);
                        for digit in last.saturating_sub(1)..=(last + 1).min(9) {
                            check(&range, &mut regex, &format!("{rest}{digit}"));
                        }
                    }
                }
            }
        }
        for edge in ["5e-324", "1e308", "-1e308", "2.2250738585072014e-308"] {
            let text = Decimal::read(edge).text().unwrap();
            for is_inclusive in [true, false] {
                let range = Range { lower: bound(edge, is_inclusive), ..Range::default() };
                let mut regex = compiled(&range);
                assert_eq!(regex.is_match(&text), is_inclusive, "{edge}");
                assert_eq!(
                    regex.is_match(&format!("{text}{}", if text.contains('.') { "1" } else { ".1" })),
                    !text.starts_with('-'),
                    "{edge}"
                );
            }
        }
        let too_long = Range { upper: bound("1e400", true), ..Range::default() };
        assert!(too_long.regex().is_none());
    }

    #[test]
    fn empty_sets_are_known() {
        for (lower, upper, is_integer, multiple_of, is_empty_set) in [
            (bound("1", true), bound("1", true), false, None, false),
            (bound("1", false), bound("1", true), false, None, true),
            (bound("0", false), bound("0.5", true), true, None, true),
            (bound("0", false), bound("0.5", true), false, None, false),
            (bound("1", true), bound("4", true), true, Some((5, 0)), true),
            (bound("1", true), bound("5", true), true, Some((5, 0)), false),
            (bound("0.01", true), bound("0.02", false), false, Some((3, 2)), true),
            (bound("2", true), bound("1", true), false, None, true),
        ] {
            let range = Range { lower, upper, is_integer, multiple_of };
            assert_eq!(is_empty(&range.regex().unwrap()), Some(is_empty_set), "{range:?}");
            assert_eq!(range.is_empty(), Some(is_empty_set), "{range:?}");
        }
    }

    #[test]
    fn multiples_fit_the_automaton() {
        for n_digits in 0..=MULTIPLE_DIGITS_MAX as u32 {
            for numerator in [1, 3, 7, 10, 999, MULTIPLE_MAX] {
                let multiple_of = multiple(&Decimal::read(&format!("{numerator}e-{n_digits}")));
                assert!(multiple_of.is_some());
                let range = Range { multiple_of, ..Range::default() };
                let mut regex = compiled(&range);
                // An odd last digit, so that no digit is cut.
                let number = Decimal::read(&format!("{}e-{n_digits}", u64::from(numerator) * 12_347));
                assert!(regex.is_match(&number.text().unwrap()), "{range:?}");
                let other = Decimal::read(&format!("{}e-{n_digits}", u64::from(numerator) * 12_347 + 1));
                assert!(numerator == 1 || !regex.is_match(&other.text().unwrap()), "{range:?}");
            }
        }
        for refused in ["0", "-1", "10001", "1e5", "1e-9", "0.000000001", "1000003"] {
            assert_eq!(multiple(&Decimal::read(refused)), None, "{refused}");
        }
        assert_eq!(multiple(&Decimal::read("1.50")), Some((15, 1)));
        assert_eq!(multiple(&Decimal::read("1e3")), Some((1000, 0)));
    }

    proptest! {
        /// Bounds and numbers of which the beginnings are often the same.
        #[test]
        fn ranges_are_those_of_decimals(
            bounds in prop::array::uniform2(prop::option::of((-20_050i64..20_050, 0u32..4, any::<bool>()))),
            numbers in prop::collection::vec((-20_050i64..20_050, 0usize..5), 1..40),
            is_integer: bool,
            multiple_of in prop::option::of((1u32..200, 0u32..3)),
        ) {
            let [lower, upper] = bounds.map(|bound| {
                bound.map(|(n, scale, is_inclusive)| Bound { value: Decimal::read(&format!("{n}e-{scale}")), is_inclusive })
            });
            let range = Range { lower, upper, is_integer, multiple_of };
            let mut regex = compiled(&range);
            for (n, n_digits) in numbers {
                let sign = if n < 0 { "-" } else { "" };
                let digits = format!("{:0>width$}", n.unsigned_abs(), width = n_digits + 1);
                let (integer, fraction) = digits.split_at(digits.len() - n_digits);
                let point = if fraction.is_empty() { "" } else { "." };
                check(&range, &mut regex, &format!("{sign}{integer}{point}{fraction}"));
            }
        }
    }
}
