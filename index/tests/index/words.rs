//! Words of notes in all scripts: what is written in one form is found in another, and other words are not.

use proptest::prelude::*;
use refrain_index::notes::Search;
use refrain_index::{Document, PassageIndex, split};
use unicode_normalization::UnicodeNormalization;

use crate::notes_support::{Place, search};

/// A script or a property, a sentence, requests that find it, requests that find nothing.
type Row = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

#[rustfmt::skip]
const TABLE: [Row; 59] = [
    ("Latin", "The dentist moved to Kirkegata.", &["DENTISTS", "Ｄｅｎｔｉｓｔ", "kirkegata", "den\u{ad}tist", "𝐝𝐞𝐧𝐭𝐢𝐬𝐭"], &["dent", "church"]),
    ("Latin, accents", "Łódź café naïve Ångström", &["lodz", "CAFE", "cafe\u{301}", "naïve", "A\u{30a}ngström", "angstrom"], &["cafeteria"]),
    ("Latin, ligatures", "The oﬃcial ﬁle ﬂew æther", &["official", "FILE", "flew", "aether"], &["icial"]),
    ("Latin, IPA and African letters", "Ŋaŋa kɛlɛn", &["ŋaŋa", "KƐLƐN"], &["kelon"]),
    ("Vietnamese", "Tôi muốn học tiếng Việt", &["tiếng", "tieng", "VIỆT", "tie\u{302}\u{301}ng"], &["tien"]),
    ("German", "Die Donaudampfschifffahrtsgesellschaftskapitänsmütze und die Straße", &["Donaudampfschifffahrtsgesellschaftskapitänsmütze", "STRASSE", "STRAẞE", "strasse"], &["Donaudampf"]),
    ("German, 63 letters", "Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz", &["RINDFLEISCHETIKETTIERUNGSÜBERWACHUNGSAUFGABENÜBERTRAGUNGSGESETZ"], &["Rindfleischetikettierungsüberwachungsaufgaben"]),
    ("Turkish", "Işık İstanbul kapısının önünde", &["ışık", "IŞIK", "istanbul", "İSTANBUL", "I\u{307}stanbul"], &["astan"]),
    ("Greek", "Ο άνεμος της Οδύσσειας", &["ΑΝΕΜΟΣ", "ανεμοσ", "άνεμος", "ὀδύσσειας"], &["θάλασσα"]),
    ("Greek, polytonic", "Μῆνιν ἄειδε θεά, ᾄδω τῷ", &["μηνιν", "ΑΕΙΔΕ", "θεα", "αδω"], &["θάλασσα"]),
    ("Cyrillic", "Главная достопримечательность города", &["достопримечательность", "ДОСТОПРИМЕЧАТЕЛЬНОСТЬ", "достопримеча\u{301}тельность", "ГОРОДА"], &["достояние"]),
    ("Cyrillic, letters with marks", "Ёлка и чай, їжак", &["елка", "ЁЛКА", "чаи\u{306}", "їжак", "і\u{308}жак"], &["іжак"]),
    ("Ukrainian", "п'ять об’єктів", &["пʼять", "п’ять", "об'єктів"], &["пать"]),
    ("Armenian", "Բարեւ աշխարհ և մարդ", &["ԲԱՐԵՒ", "բարև", "ԵՒ", "Աշխարհ"], &["տուն"]),
    ("Georgian", "საქართველო თბილისი", &["ᲗᲑᲘᲚᲘᲡᲘ", "საქართველო"], &["ბათუმი"]),
    ("Cherokee", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", &["ꮳꮃꭹ", "ᏣᎳᎩ"], &["ᏣᎳ"]),
    ("Hebrew", "שָׁלוֹם עֲלֵיכֶם צה״ל", &["שלום", "עליכם", "שׁלום", "צה\"ל"], &["שלו"]),
    ("Arabic", "مُحَمَّدٌ فِي المَدِينَة ٢٠٢٤", &["محمد", "مـحـمـد", "المدينة", "2024", "ﻣﺤﻤﺪ", "المدينه"], &["محمود"]),
    ("Arabic, ligatures", "السلام ﷺ ﻻ", &["السلام", "صلى", "لا"], &["كلا"]),
    ("Persian", "کتاب‌ها را می‌خواهم ۱۴۰۳", &["كتابها", "کتاب", "کتاب ها", "می‌خواهم", "میخواهم", "1403"], &["کتابخانه"]),
    ("Urdu", "یہ کتاب اچھی ہے", &["كتاب", "یہ"], &["کتابیں"]),
    ("Syriac", "ܫܠܳܡܳܐ ܥܰܠܡܳܐ", &["ܫܠܡܐ", "ܥܠܡܐ"], &["ܫܠܡ"]),
    ("Thaana", "ދިވެހި ބަސް", &["ދިވެހި", "ބަސް"], &["ދުވަހު", "ބިސް"]),
    ("N’Ko", "ߒߞߏ ߞߊ߲", &["ߒߞߏ", "ߞߊ߲"], &["ߞߊ"]),
    ("Adlam", "𞤀𞤣𞤤𞤢𞤥 𞤆𞤵𞤤𞤢𞤪", &["𞤢𞤣𞤤𞤢𞤥"], &["𞤀𞤣𞤤"]),
    ("Ethiopic", "ሰላም ለዓለም", &["ሰላም"], &["ሰላ"]),
    ("Tifinagh", "ⵜⴰⵎⴰⵣⵉⵖⵜ ⴰⵡⴰⵍ", &["ⵜⴰⵎⴰⵣⵉⵖⵜ"], &["ⴰⵡⴰ"]),
    ("Devanagari", "दिन में हिन्दी की किताब २०२४", &["दिन", "हिन्दी", "किताब", "2024", "हि\u{200d}न्दी"], &["दान", "हनद", "कतब", "हिन"]),
    ("Devanagari, nukta", "क़लम", &["क\u{93c}लम"], &["कमल"]),
    ("Bengali", "আমার সোনার বাংলা ১৯৭১", &["সোনার", "স\u{9c7}\u{9be}নার", "বাংলা", "1971"], &["সানার", "বংলা"]),
    ("Gurmukhi", "ਪੰਜਾਬੀ ਕਿਤਾਬ", &["ਪੰਜਾਬੀ"], &["ਪਜਬ", "ਕਤਾਬ"]),
    ("Gujarati", "ગુજરાતી ભાષા", &["ગુજરાતી"], &["ગજરત"]),
    ("Odia", "ଓଡ଼ିଆ ଭାଷା", &["ଓଡ\u{b3c}ିଆ"], &["ଓଡା", "ଭଷ"]),
    ("Tamil", "தமிழ் மொழி கொடு", &["தமிழ்", "க\u{bc6}\u{bbe}டு"], &["தமழ", "மழ"]),
    ("Telugu", "తెలుగు భాష", &["తెలుగు"], &["తలగ", "భష"]),
    ("Kannada", "ಕನ್ನಡ ಭಾಷೆ ಕೋಟೆ", &["ಕನ್ನಡ", "ಕ\u{cc6}\u{cc2}\u{cd5}ಟೆ"], &["ಕನನಡ", "ಭಷ"]),
    ("Malayalam", "മലയാളം ഭാഷ കൊടി", &["മലയാളം", "ക\u{d46}\u{d3e}ടി"], &["മലയളം"]),
    ("Sinhala", "සිංහල භාෂාව", &["සිංහල", "භාෂාව"], &["සංහල", "භෂව"]),
    ("Tibetan", "བོད་ཡིག་སློབ་སྦྱོང་།", &["བོད་ཡིག", "སློབ"], &["བད", "སབ"]),
    ("Meetei Mayek", "ꯃꯤꯇꯩ ꯃꯌꯦꯛ", &["ꯃꯤꯇꯩ"], &["ꯃꯇ"]),
    ("Chakma", "𑄌𑄋𑄴𑄟𑄳𑄦", &["𑄌𑄋𑄴𑄟𑄳𑄦"], &["𑄌𑄋𑄟𑄦"]),
    ("Thai", "พรุ่งนี้ประชุมที่กรุงเทพ ๒๕๖๗", &["ประชุม", "กรุงเทพ", "2567", "ประ\u{200b}ชุม"], &["ปุจฉา", "ดาว"]),
    ("Lao", "ປະຊຸມມື້ອື່ນ", &["ປະຊຸມ"], &["ດາວ"]),
    ("Khmer", "ការប្រជុំនៅភ្នំពេញ", &["ប្រជុំ", "ភ្នំពេញ", "ប្រជុំ\u{200b}នៅ"], &["មួយ"]),
    ("Burmese", "မနက်ဖြန်အစည်းအဝေး ၂၀၂၄", &["အစည်းအဝေး", "2024"], &["ကြယ်"]),
    ("Javanese", "ꦧꦱꦗꦮ", &["ꦗꦮ"], &["ꦮꦗ"]),
    ("Balinese", "ᬩᬲᬩᬮᬶ", &["ᬩᬮᬶ"], &["ᬮᬩ"]),
    ("Chinese", "我们明天在北京开会", &["北京", "京", "开会"], &["京北", "南京"]),
    ("Chinese, compatibility", "豈更車", &["豈更"], &["更豈"]),
    ("Chinese, beyond the basic plane", "𠮷野家", &["𠮷野", "𠮷"], &["𠮷家"]),
    ("Japanese", "東京へガソリンを運ぶ。㍿山田", &["東京", "ｶﾞｿﾘﾝ", "カ\u{3099}ソリン", "株式会社", "山田"], &["京東", "カソ"]),
    ("Japanese, kana marks", "がぎぐ", &["か\u{3099}き\u{3099}"], &["かき"]),
    ("Korean", "회의는 내일", &["회의", "\u{1112}\u{116c}\u{110b}\u{1174}", "\u{ffbe}\u{ffcf}\u{ffb7}\u{ffdb}"], &["의회", "회사"]),
    ("Bopomofo and Yi", "ㄅㄆㄇ ꆈꌠꁱꂷ", &["ㄅㄆㄇ", "ꆈꌠꁱꂷ"], &["ㄅㄆ"]),
    ("Mongolian", "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ", &["ᠮᠣᠩᠭᠣᠯ", "ᠮᠣᠩᠭᠣᠯ\u{180b}"], &["ᠮᠣᠩ"]),
    ("Deseret", "𐐔𐐯𐑅𐐨𐑉𐐯𐐻", &["𐐼𐐯𐑅𐐨𐑉𐐯𐐻"], &["𐐔𐐯"]),
    ("Emoji", "Party 🎉 with 👩‍🚀 ☑️", &["🎉", "👩", "🚀", "☑", "👩🏽"], &["🎂", "\u{fe0f}"]),
    ("Apostrophes, hyphens, addresses", "don’t l’eau e‑mail ada.voss@example.org snake_case m² word¹ Name™ 3.14", &["don't", "eau", "e-mail", "ada.voss@example.org", "example", "case", "m2", "m²", "word", "name", "3.14"], &["voss2", "wor"]),
    ("Codes and long ids", "K4471 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", &["k4471", "Ｋ４４７１", "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"], &["K4472", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b856"]),
];

/// A search sees one row. Its request has the stems of all languages of the table.
#[test]
fn words_of_all_scripts_are_found_in_all_forms() {
    let forms = |text: &str| [text.to_owned(), text.nfc().collect(), text.nfd().collect()];
    let place = Place::new();
    let mut rows = Vec::new();
    for (row, (name, text, found_by, not_found_by)) in TABLE.into_iter().enumerate() {
        for (form, text) in forms(text).into_iter().enumerate() {
            let path = place.write(&format!("{row} {form}.md"), &text);
            let in_memory = PassageIndex::build(split(&Document::new(&path, &text))).unwrap();
            rows.push((name, text, path, in_memory, [(found_by, 1), (not_found_by, 0)]));
        }
    }
    let index = place.indexed();
    let mut wrong = Vec::new();
    for (name, text, path, in_memory, requests) in &rows {
        for (requests, expected) in requests {
            for request in requests.iter().flat_map(|request| forms(request)) {
                let mut search = Search::new(&request, 1);
                search.filter.folders = vec![path.clone()];
                let n_found = index.search(&search).unwrap().len();
                // In memory, all words are stemmed as English ones.
                let n_in_memory = in_memory.search(&request, 1).unwrap().len();
                if (n_found, n_in_memory) != (*expected, *expected) {
                    wrong.push(format!(
                        "{name}: {request:?} in {text:?}: {n_found}, {n_in_memory}, not {expected}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Of a word of any length, the beginning is in the index; a snippet shows the beginning.
#[test]
fn long_words_are_never_dropped() {
    let place = Place::new();
    let word = "достопримечательность".repeat(1000);
    place.write("a.md", format!("before {word} behind"));
    let index = place.indexed();
    for request in ["before", &word, &word[..256], "behind"] {
        let hits = search(&index, request);
        assert!(!hits.is_empty() && !hits[0].snippet.matched.is_empty(), "{} bytes", request.len());
    }
    assert!(search(&index, &word[..240]).is_empty());
}

#[test]
fn tags_do_not_depend_on_their_form() {
    let place = Place::new();
    let decomposed: String = "#Café #한국 #हिन्दी".nfd().collect();
    place.write("a.md", format!("Text {decomposed}"));
    let index = place.indexed();
    for tag in ["café", "#CAFÉ", "한국", "हिन्दी"] {
        let mut search = Search::new("text", 3);
        search.filter.tags = vec![tag.to_owned()];
        assert_eq!(index.search(&search).unwrap().len(), 1, "{tag}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every word of a text, in every form, finds the text.
    #[test]
    fn every_part_of_a_text_finds_it(
        text in prop_oneof![
            "(\\PC| ){1,60}",
            "([\\p{Script=Devanagari}\\p{Script=Tamil}\\p{Script=Bengali}]|\u{200d}| ){1,40}",
            "([\\p{Script=Hangul}\\p{Script=Katakana}\\p{Script=Han}]| ){1,40}",
            "([\\p{Script=Thai}\\p{Script=Khmer}\\p{Script=Myanmar}\\p{Script=Tibetan}]|\u{200b}| ){1,40}",
            "([\\p{Script=Arabic}\\p{Script=Hebrew}\\p{Script=Syriac}]|\u{200c}| ){1,40}",
            "([\\p{Script=Latin}\\p{Script=Greek}\\p{Script=Cyrillic}\\p{Mn}\\p{No}]|\u{ad}| ){1,40}",
        ]
    ) {
        // Nothing at its start makes it a heading.
        let index = |text: &str| PassageIndex::build(split(&Document::new("a.txt", &format!("x {text}")))).unwrap();
        let of_text = index(&text);
        for part in text.split(char::is_whitespace) {
            // A part without letters has no words.
            let expected = index(part).search(part, 1).unwrap().len();
            for form in [part.nfc().collect::<String>(), part.nfd().collect(), part.nfkc().collect(), part.nfkd().collect()] {
                prop_assert_eq!(of_text.search(&form, 1).unwrap().len(), expected, "{:?} in {:?}", form, text);
            }
            let has_words = part.chars().any(|c| c.is_alphabetic() && c.is_ascii());
            prop_assert!(expected == 1 || !has_words);
        }
    }
}
