//! Numbers of a JSON text that a 64-bit integer or float does not hold as they are written.

/// Where the scan stands: in an object behind this key, or in an array at this index.
enum Level<'t> {
    Object(&'t str),
    Array(usize),
}

/// The first number that serde_json's values round, with its path: of all numbers, or under `fields` of the outermost object. `bytes` are
/// JSON that serde_json has read.
pub(crate) fn rounded<'t>(bytes: &'t [u8], fields: Option<&[&str]>) -> Option<(String, &'t str)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut levels: Vec<Level<'t>> = Vec::new();
    // The newest string. Before a colon it is a key.
    let mut string = "";
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'{' => levels.push(Level::Object("")),
            b'[' => levels.push(Level::Array(0)),
            b'}' | b']' => drop(levels.pop()),
            b':' => {
                if let Some(Level::Object(key)) = levels.last_mut() {
                    *key = string;
                }
            }
            b',' => {
                if let Some(Level::Array(index)) = levels.last_mut() {
                    *index += 1;
                }
            }
            b'"' => {
                while *bytes.get(at)? != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                string = &text[start + 1..at];
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                while bytes.get(at).is_some_and(|byte| byte.is_ascii_digit() || b".eE+-".contains(byte)) {
                    at += 1;
                }
                let literal = &text[start..at];
                let is_meant = fields.is_none_or(|fields| {
                    // A name with an escape may be any.
                    matches!(levels.first(), Some(Level::Object(field)) if fields.contains(field) || field.contains('\\'))
                });
                if is_meant && !is_kept(literal) {
                    let end = literal.len().min(40);
                    return Some((path(&levels), &literal[..end]));
                }
            }
            _ => {}
        }
    }
    None
}

fn path(levels: &[Level<'_>]) -> String {
    let path: String = levels
        .iter()
        .map(|level| match level {
            Level::Object(key) => format!(".{key}"),
            Level::Array(index) => format!("[{index}]"),
        })
        .collect();
    path.trim_start_matches('.').chars().take(200).collect()
}

fn is_kept(literal: &str) -> bool {
    if literal.parse::<i64>().is_ok() || literal.parse::<u64>().is_ok() {
        return true;
    }
    let float: Option<f64> = literal.parse().ok();
    float.is_some_and(|float| float.is_finite() && decimal(&format!("{float:e}")) == decimal(literal))
}

/// Significant digits with their sign, and the power of ten of the first one.
fn decimal(literal: &str) -> (bool, String, i64) {
    let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
    let (mantissa, is_negative) = mantissa.strip_prefix('-').map_or((mantissa, false), |rest| (rest, true));
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [integer, fraction].concat();
    let n_zeros = digits.len() - digits.trim_start_matches('0').len();
    let digits = digits.trim_matches('0').to_owned();
    if digits.is_empty() {
        return (false, digits, 0);
    }
    let exponent = exponent.parse().unwrap_or(i64::MAX);
    (is_negative, digits, exponent.saturating_add(integer.len() as i64).saturating_sub(n_zeros as i64))
}
