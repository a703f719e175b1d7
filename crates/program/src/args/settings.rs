//! Settings of a group under one option: `--drafting KEY=VALUE,…`.

/// Reads `KEY=VALUE`. `read` gives `None` for a key that it does not know.
pub fn setting<T>(
    text: &str,
    read: impl FnOnce(&str, &str) -> Option<Result<T, String>>,
) -> Result<T, String> {
    let help = "--help-all lists the keys";
    let (key, value) = text.split_once('=').ok_or_else(|| format!("write KEY=VALUE; {help}"))?;
    let (key, value) = (key.trim(), value.trim());
    let setting = read(key, value).ok_or_else(|| format!("there is no key `{key}`; {help}"))?;
    setting.map_err(|problem| format!("{key}: {problem}"))
}

/// The value of a setting that has a few, by its name.
pub fn one_of<T: Clone>(value: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == value);
    found.map(|(_, known)| known.clone()).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("possible values: {}", names.join(", "))
    })
}

/// A number, with the parser's reason if it is none.
pub fn number<T: std::str::FromStr<Err: std::fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| format!("`{value}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_or_named_in_its_error() {
        let read = |text: &str| {
            setting(text, |key, value| match key {
                "rows" => Some(number::<usize>(value)),
                "echo" => Some(one_of(value, &[("off", 0), ("on", 1)])),
                _ => None,
            })
        };
        assert_eq!((read("rows=7"), read(" echo = on ")), (Ok(7), Ok(1)));
        for (text, part) in
            [("rows=x", "rows: `x`"), ("echo=x", "off, on"), ("x=1", "no key `x`"), ("rows", "KEY=VALUE")]
        {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
