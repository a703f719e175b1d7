//! Notes from a seed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// 0 to `n`, small numbers more often, as words are (Zipf, by inversion of 1/x).
    fn zipf(&mut self, n: usize) -> usize {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        ((n as f64).powf(uniform) as usize).min(n - 1)
    }
}

/// Function words, so that the languages are recognised, and syllables and endings of the other words.
struct Tongue {
    functions: [&'static str; 12],
    syllables: [&'static str; 12],
    endings: [&'static str; 6],
}

const TONGUES: [Tongue; 3] = [
    Tongue {
        functions: ["the", "of", "and", "to", "in", "that", "is", "was", "with", "for", "which", "they"],
        syllables: ["tra", "mon", "ther", "ight", "sh", "ound", "pl", "wea", "ch", "gar", "den", "st"],
        endings: ["", "s", "ed", "ing", "er", "ly"],
    },
    Tongue {
        functions: ["der", "die", "und", "nicht", "das", "mit", "auf", "eine", "wird", "auch", "von", "ist"],
        syllables: ["schl", "ung", "wald", "ber", "gäst", "häu", "zeit", "stra", "vor", "ge", "tr", "kraf"],
        endings: ["", "e", "en", "er", "es", "ungen"],
    },
    Tongue {
        functions: ["le", "la", "les", "des", "est", "une", "dans", "pour", "que", "qui", "avec", "sur"],
        syllables: ["mai", "son", "ri", "vière", "cha", "teau", "prin", "temps", "gé", "né", "bou", "tique"],
        endings: ["", "s", "es", "ment", "ation", "eux"],
    },
];

/// Different words of a language.
const N_WORDS: usize = 30_000;

fn word(tongue: &Tongue, number: usize, ending: usize) -> String {
    let mut rng = Rng(number as u64 * 31 + 7);
    let n_syllables = 1 + rng.below(3) + usize::from(number > 100);
    let stem: String = (0..n_syllables).map(|_| tongue.syllables[rng.below(12)]).collect();
    stem + tongue.endings[ending]
}

fn sentence(rng: &mut Rng, tongue: &Tongue, out: &mut String) {
    for i in 0..8 + rng.below(10) {
        if i > 0 {
            out.push(' ');
        }
        match rng.below(5) {
            0 | 1 => out.push_str(tongue.functions[rng.zipf(12)]),
            _ => out.push_str(&word(tongue, rng.zipf(N_WORDS), rng.below(6))),
        }
    }
    out.push_str(". ");
}

fn japanese(rng: &mut Rng, out: &mut String) {
    for _ in 0..12 + rng.below(20) {
        let character = match rng.below(2) {
            0 => 0x3042 + rng.zipf(80) as u32,
            _ => 0x4e00 + rng.zipf(2000) as u32,
        };
        out.extend(char::from_u32(character));
    }
    out.push('。');
}

/// A note of about 3 KB.
pub(crate) fn note(rng: &mut Rng) -> String {
    let language = rng.below(20);
    let tongue = &TONGUES[match language {
        0..14 => 0,
        14..17 => 1,
        _ => 2,
    }];
    let mut text = format!("# {} {}\n\n", word(tongue, rng.below(N_WORDS), 0), rng.below(1000));
    let length = 1500 + rng.below(3000);
    while text.len() < length {
        if rng.below(4) == 0 {
            text.push_str(&format!("## {}\n\n", word(tongue, rng.zipf(N_WORDS), 0)));
        }
        let is_list = rng.below(4) == 0;
        for _ in 0..2 + rng.below(6) {
            if is_list {
                text.push_str("- ");
            }
            match language {
                19 => japanese(rng, &mut text),
                _ => sentence(rng, tongue, &mut text),
            }
            if is_list {
                text.push('\n');
            }
        }
        text.push_str(if rng.below(9) == 0 { "#project\n\n" } else { "\n\n" });
    }
    text
}

/// A request of three to eight words, frequent and rare ones.
pub(crate) fn query(rng: &mut Rng) -> String {
    let tongue = &TONGUES[rng.below(4).saturating_sub(1)];
    let n_words = 3 + rng.below(6);
    let words = (0..n_words).map(|i| match i {
        0 => tongue.functions[rng.below(12)].to_owned(),
        _ => word(tongue, rng.zipf(N_WORDS), rng.below(6)),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The file of a note.
pub(crate) fn path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{}/{number}.md", number % 10))
}

/// Writes notes. Returns their length in bytes.
pub(crate) fn write(folder: &Path, n_notes: usize) -> io::Result<usize> {
    let mut rng = Rng(1);
    (0..10).try_for_each(|i| fs::create_dir_all(folder.join(i.to_string())))?;
    let mut bytes = 0;
    for number in 0..n_notes {
        let text = note(&mut rng);
        bytes += text.len();
        fs::write(path(folder, number), text)?;
    }
    Ok(bytes)
}
