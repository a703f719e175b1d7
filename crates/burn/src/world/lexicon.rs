//! Names, places, dates and amounts.
//!
//! Names are composed of syllables: there are millions, so that a model cannot memorise them. One in eight, by a hash
//! of the name, is never used in training. The evaluation and the sample notes draw only from those.

use refrain::internals::tokenizer::MONTHS;

use crate::rng::Rng;

const ONSETS: &[&str] = &[
    "B", "Br", "C", "Ch", "D", "Dr", "F", "G", "Gr", "H", "J", "K", "Kr", "L", "M", "N", "P", "Pr", "Qu",
    "R", "S", "Sh", "St", "T", "Th", "Tr", "V", "W", "Y", "Z", "A", "E", "I", "O", "U", "El", "Al", "Or",
    "Is", "An",
];
const VOWELS: &[&str] = &["a", "e", "i", "o", "u", "ai", "ea", "ia", "oa", "ei", "ou", "y"];
const MIDDLES: &[&str] = &[
    "b", "br", "d", "dr", "g", "l", "ld", "lm", "ll", "m", "mb", "n", "nd", "nn", "nt", "r", "rd", "rl",
    "rn", "rr", "s", "sk", "ss", "st", "t", "th", "tt", "v", "z", "zz", "k", "ck", "p", "f", "ph", "sh",
];
const FIRST_ENDS: &[&str] =
    &["a", "e", "o", "i", "an", "en", "in", "el", "a", "is", "us", "ra", "na", "ka", "lo", "mi"];
const LAST_ENDS: &[&str] = &[
    "son", "sen", "er", "man", "ov", "ski", "ez", "ton", "ley", "field", "wood", "berg", "mann", "ing", "as",
    "ell", "ard", "ero", "ini", "aki", "ura", "well", "worth", "dale", "strom", "quist",
];
const PLACE_ENDS: &[&str] = &[
    "ville", "burg", "ford", "ton", "haven", "mouth", "stad", "port", "field", "bridge", "a", "ia", "o",
    "ham", "by", "dorf", "mar", "holm", "wick", "grad",
];
const BRAND_ENDS: &[&str] = &[
    "ix", "on", "ex", "o", "a", "ify", "ware", "tec", "lab", "net", "us", "or", "yx", "io", "um", "is",
    "eon", "ara",
];
const COMMON_FIRST: &[&str] = &[
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ivy", "Jonas", "Kate", "Leo",
    "Maria", "Nina", "Oscar", "Paula", "Ravi", "Sara", "Tom", "Vera", "Will", "Yuki", "Omar", "Lena", "Mark",
    "Julia", "Peter", "Lucy",
];
const COMMON_LAST: &[&str] = &[
    "Smith", "Brown", "Meyer", "Garcia", "Rossi", "Novak", "Khan", "Silva", "Jensen", "Weber", "Patel",
    "Kim", "Lopez", "Martin", "Fischer", "Moore", "Clark", "Wagner", "Santos", "Ali",
];
const COMMON_PLACES: &[&str] = &[
    "Berlin", "London", "Paris", "Rome", "Vienna", "Lisbon", "Madrid", "Oslo", "Prague", "Zurich", "Boston",
    "Kyoto", "Dublin", "Milan", "Hamburg", "Seattle",
];
const DAYS: &[&str] = &["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Whether training never uses the name (FNV-1a of the name, one in eight).
pub fn is_held_out(name: &str) -> bool {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash >> 32).is_multiple_of(8)
}

/// Draws the words of one document.
#[derive(Debug, Clone)]
pub struct Lexicon {
    /// The random numbers of the document.
    pub rng: Rng,
    held_out: bool,
}

impl Lexicon {
    /// Words for one document. With `held_out`, all names are from the part that training never uses.
    pub fn new(rng: Rng, held_out: bool) -> Self {
        Self { rng, held_out }
    }

    /// Names with this stem and these endings, drawn until one belongs to the required part.
    fn coin(&mut self, middles: usize, ends: &[&str]) -> String {
        loop {
            let mut name = self.rng.pick(ONSETS).to_owned();
            for _ in 0..middles {
                if !name.ends_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U']) {
                    name.push_str(self.rng.pick(VOWELS));
                }
                name.push_str(self.rng.pick(MIDDLES));
            }
            let end = self.rng.pick(ends);
            if !end.starts_with(['a', 'e', 'i', 'o', 'u', 'y']) && self.rng.percent(30) {
                name.push_str(self.rng.pick(VOWELS));
            }
            name.push_str(end);
            if is_held_out(&name) == self.held_out {
                return name;
            }
        }
    }

    /// A first name.
    pub fn first_name(&mut self) -> String {
        if !self.held_out && self.rng.percent(20) {
            return self.rng.pick(COMMON_FIRST).to_owned();
        }
        self.coin(1, FIRST_ENDS)
    }

    /// A first and a last name.
    pub fn person(&mut self) -> String {
        let last = if !self.held_out && self.rng.percent(15) {
            self.rng.pick(COMMON_LAST).to_owned()
        } else {
            self.coin(1, LAST_ENDS)
        };
        format!("{} {last}", self.first_name())
    }

    /// A town.
    pub fn place(&mut self) -> String {
        if !self.held_out && self.rng.percent(15) {
            return self.rng.pick(COMMON_PLACES).to_owned();
        }
        self.coin(1, PLACE_ENDS)
    }

    /// A made-up word for a project or product.
    pub fn brand(&mut self) -> String {
        let middles = self.rng.range(1, 2);
        self.coin(middles, BRAND_ENDS)
    }

    /// A company.
    pub fn company(&mut self) -> String {
        let form = self.rng.pick(&[
            "Foods",
            "Systems",
            "Group",
            "Media",
            "Partners",
            "Works",
            "Bank",
            "Studio",
            "Logistics",
            "Ltd",
        ]);
        format!("{} {form}", self.brand())
    }

    /// A day with or without its weekday.
    pub fn date(&mut self) -> String {
        let (day, month) = (self.rng.range(1, 28), self.rng.pick(&MONTHS));
        match self.rng.below(4) {
            0 => format!("{month} {day}"),
            1 => format!("{} {day} {month}", self.rng.pick(DAYS)),
            2 => self.rng.pick(DAYS).to_owned(),
            _ => format!("{day} {month}"),
        }
    }

    /// A time of the day.
    pub fn time(&mut self) -> String {
        let minute = [0, 15, 30, 45, 10, 20, 40, 50][self.rng.below(8)];
        match self.rng.below(3) {
            0 => format!("{} {}", self.rng.range(1, 12), self.rng.pick(&["am", "pm"])),
            _ => format!("{:02}:{minute:02}", self.rng.range(6, 22)),
        }
    }

    /// An amount of money.
    pub fn money(&mut self) -> String {
        let amount = match self.rng.below(4) {
            0 => self.rng.range(5, 99).to_string(),
            1 => (self.rng.range(10, 99) * 10).to_string(),
            2 => format!("{},{}00", self.rng.range(1, 48), self.rng.range(0, 9)),
            _ => format!("{}.{:02}", self.rng.range(3, 240), self.rng.range(1, 19) * 5),
        };
        match self.rng.below(4) {
            0 => format!("${amount}"),
            1 => format!("£{amount}"),
            2 => format!("{amount} euros"),
            _ => format!("€{amount}"),
        }
    }

    /// A booking or order code.
    pub fn code(&mut self) -> String {
        let letters: String = (0..2).map(|_| char::from(b'A' + self.rng.below(26) as u8)).collect();
        format!("{letters}-{}", self.rng.range(1000, 9999))
    }

    /// A telephone number.
    pub fn phone(&mut self) -> String {
        format!("0{} {} {}", self.rng.range(20, 99), self.rng.range(100, 999), self.rng.range(1000, 9999))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_out_names_never_meet_training_names() {
        let mut train = Lexicon::new(Rng::new(1, 0), false);
        let mut held = Lexicon::new(Rng::new(1, 0), true);
        for _ in 0..300 {
            assert!(!is_held_out(&train.brand()) && is_held_out(&held.brand()));
            assert!(held.person().split(' ').all(is_held_out));
        }
    }
}
