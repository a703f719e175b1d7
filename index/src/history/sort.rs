//! Suffix arrays of numbers, by induced sorting (SA-IS).
//!
//! Nong, Zhang, Chan 2009, in the form of AtCoder's library. The suffixes at the start of an S-type run (*LMS*) are
//! sorted first, by recursion over the names of the pieces between them. Two sweeps then insert all other suffixes.
//! Linear time; 13 bytes per number, and half of that again for each level of the recursion.

/// Marks an empty entry; texts are shorter than this.
const EMPTY: u32 = u32::MAX;

/// Start positions of all suffixes of `text`, in order. A suffix that is a prefix of another comes first.
///
/// `max` is the largest number of the text. Time and memory are linear in it too.
pub(super) fn suffix_array(text: &[u32], max: u32) -> Vec<u32> {
    assert!(text.len() < EMPTY as usize, "{} numbers are too many", text.len());
    match text.len() {
        0 => return Vec::new(),
        1 => return vec![0],
        _ => {}
    }
    let mut sorter = Sorter::new(text, max);
    let is_lms = |i: usize| i > 0 && sorter.rises[i] && !sorter.rises[i - 1];
    let lms: Vec<u32> = (0..text.len()).filter(|&i| is_lms(i)).map(|i| i as u32).collect();
    sorter.induce(&lms);
    if lms.is_empty() {
        return sorter.array;
    }
    let (names, name_max) = name_pieces(&sorter, &lms);
    let order = suffix_array(&names, name_max);
    drop(names);
    let sorted: Vec<u32> = order.into_iter().map(|i| lms[i as usize]).collect();
    sorter.induce(&sorted);
    sorter.array
}

struct Sorter<'a> {
    text: &'a [u32],
    /// Whether the suffix is smaller than the one after it (S-type).
    rises: Vec<bool>,
    /// The start in the array of the L-type suffixes of each number, and of the S-type suffixes.
    falling_starts: Vec<u32>,
    rising_starts: Vec<u32>,
    array: Vec<u32>,
}

impl<'a> Sorter<'a> {
    fn new(text: &'a [u32], max: u32) -> Self {
        let n = text.len();
        let mut rises = vec![false; n];
        for i in (0..n - 1).rev() {
            rises[i] = if text[i] == text[i + 1] { rises[i + 1] } else { text[i] < text[i + 1] };
        }
        let n_numbers = max as usize + 1;
        let (mut n_falling, mut n_rising) = (vec![0u32; n_numbers], vec![0u32; n_numbers]);
        for (&number, &rises) in text.iter().zip(&rises) {
            let counts = if rises { &mut n_rising } else { &mut n_falling };
            counts[number as usize] += 1;
        }
        // In place: counts become starts.
        let mut next = 0;
        for (falling, rising) in n_falling.iter_mut().zip(&mut n_rising) {
            let (falling_start, rising_start) = (next, next + *falling);
            next = rising_start + *rising;
            (*falling, *rising) = (falling_start, rising_start);
        }
        Sorter { text, rises, falling_starts: n_falling, rising_starts: n_rising, array: vec![EMPTY; n] }
    }

    /// Fills the array from the LMS suffixes, sorted completely or by their pieces, according to `lms`.
    fn induce(&mut self, lms: &[u32]) {
        let Sorter { text, rises, falling_starts, rising_starts, array } = self;
        let n = text.len();
        let number = |i: u32| text[i as usize] as usize;
        array.fill(EMPTY);
        let mut places = rising_starts.clone();
        for &i in lms {
            let place = &mut places[number(i)];
            array[*place as usize] = i;
            *place += 1;
        }
        places.copy_from_slice(falling_starts);
        let mut put = |array: &mut [u32], i: u32| {
            let place = &mut places[number(i)];
            array[*place as usize] = i;
            *place += 1;
        };
        put(array, n as u32 - 1);
        for place in 0..n {
            let i = array[place];
            if i != EMPTY && i > 0 && !rises[i as usize - 1] {
                put(array, i - 1);
            }
        }
        // S-type suffixes of a number fill their part from its end, the start of the next number.
        let mut ends = places;
        let n_numbers = ends.len();
        for (number, end) in ends.iter_mut().enumerate() {
            *end = if number + 1 < n_numbers { falling_starts[number + 1] } else { n as u32 };
        }
        for place in (0..n).rev() {
            let i = array[place];
            if i != EMPTY && i > 0 && rises[i as usize - 1] {
                let end = &mut ends[number(i - 1)];
                *end -= 1;
                array[*end as usize] = i - 1;
            }
        }
    }
}

/// Names the pieces between LMS positions by their order: equal pieces get equal names. Returns the names in order of
/// the text, and the largest.
fn name_pieces(sorter: &Sorter<'_>, lms: &[u32]) -> (Vec<u32>, u32) {
    let text = sorter.text;
    let mut rank_of = vec![EMPTY; text.len()];
    for (rank, &i) in lms.iter().enumerate() {
        rank_of[i as usize] = rank as u32;
    }
    let piece = |rank: u32| {
        let start = lms[rank as usize] as usize;
        // The first number of the next piece belongs to this piece too.
        let end = lms.get(rank as usize + 1).map_or(text.len(), |&next| next as usize + 1);
        (&text[start..end], end == text.len())
    };
    let mut names = vec![0; lms.len()];
    let mut name = 0;
    let mut before: Option<u32> = None;
    for rank in sorter.array.iter().map(|&i| rank_of[i as usize]).filter(|&rank| rank != EMPTY) {
        if let Some(before) = before {
            // The last piece ends with the text, so it comes before any other piece with the same beginning.
            let ((a, a_is_last), (b, b_is_last)) = (piece(before), piece(rank));
            name += u32::from(a != b || a_is_last || b_is_last);
        }
        names[rank as usize] = name;
        before = Some(rank);
    }
    (names, name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(text: &[u32]) -> Vec<u32> {
        let mut array: Vec<u32> = (0..text.len() as u32).collect();
        array.sort_by_key(|&i| &text[i as usize..]);
        array
    }

    fn check(text: &[u32]) {
        let max = text.iter().copied().max().unwrap_or(0);
        assert_eq!(suffix_array(text, max), naive(text), "{text:?}");
    }

    #[test]
    fn every_short_text() {
        for n_numbers in 1..=4u32 {
            for len in 0..=6 {
                for code in 0..n_numbers.pow(len) {
                    let text: Vec<u32> = (0..len).map(|i| code / n_numbers.pow(i) % n_numbers).collect();
                    check(&text);
                }
            }
        }
    }

    #[test]
    fn repeated_texts() {
        let fibonacci = (0..12).fold((vec![1], vec![0]), |(a, b), _| ([&a[..], &b[..]].concat(), a)).0;
        check(&fibonacci);
        check(&[7; 300]);
        check(&[2, 1].repeat(200));
        check(&[0, 3, 1, 3, 0, 2].repeat(60));
    }

    proptest! {
        #[test]
        fn random_texts(text in proptest::collection::vec(0..5u32, 0..400)) {
            check(&text);
        }

        #[test]
        fn texts_with_many_numbers(text in proptest::collection::vec(0..1000u32, 0..400)) {
            check(&text);
        }
    }
}
