//! Words that are too common to identify the subject of a request.

use crate::notes::Language;

/// Frequent English function words, the auxiliaries of questions, and the parts of words with an apostrophe; lower
/// case.
///
/// BM25 gives almost no weight to a word that is in every passage. With few notes, it cannot identify these words.
/// The list is short: removing a meaningful word costs more than keeping a meaningless one.
pub(crate) const STOP_WORDS: [&str; 66] = [
    "a", "about", "am", "an", "and", "are", "as", "at", "be", "been", "by", "can", "could", "d", "did", "do",
    "does", "for", "from", "had", "has", "have", "he", "how", "i", "in", "is", "it", "its", "ll", "m", "me",
    "my", "of", "on", "or", "our", "please", "s", "she", "should", "t", "that", "the", "their", "them",
    "they", "this", "to", "us", "ve", "was", "we", "were", "what", "when", "where", "which", "who", "whose",
    "why", "will", "with", "would", "you", "your",
];

/// Further function words of questions: of languages whose lists tantivy lacks, and what its lists lack. Lower case.
pub(crate) const QUESTION_WORDS: [(Language, &str); 21] = [
    (Language::English, "many much get got going whom any does long often"),
    (
        Language::German,
        "wann warum wer wem wen wessen woher wohin womit wofür wogegen wovon woran welchem wieviel viel viele bitte gibt \
         habe hast gehabt",
    ),
    (Language::Dutch, "waar wanneer waarom hoe hoeveel welk welke wie wiens waarvoor waarmee heb hebben"),
    (
        Language::French,
        "où quand comment combien pourquoi quel quelle quels quelles quoi lequel laquelle est ce faut il elle on nous vous \
         suis sommes fait font être avoir a ont y va vont propos",
    ),
    (
        Language::Spanish,
        "qué cuándo cuánto cuánta cuántos cuántas dónde adónde cómo cuál cuáles quién quiénes soy es está están hay",
    ),
    (
        Language::Italian,
        "che cosa quando quanto quanta quanti quante dove come quale quali chi perché è c sono si trova fa",
    ),
    (
        Language::Portuguese,
        "que quê quando quanto quanta quantos quantas onde como qual quais quem porque porquê é são sou foi fica há",
    ),
    (Language::Danish, "hvornår hvor hvordan hvad hvem hvilken hvilket hvilke hvorfor mange meget"),
    (Language::Norwegian, "når hvor hvordan hva hvem hvilken hvilket hvilke hvorfor mange mye"),
    (Language::Swedish, "när var vart hur vad vem vilken vilket vilka varför många mycket"),
    (Language::Finnish, "milloin missä mistä mihin miten mitä mikä kuka paljonko montako miksi onko"),
    (Language::Hungarian, "mikor hol hova honnan hogyan mi mit ki kit mennyi hány melyik miért"),
    (
        Language::Russian,
        "когда где куда откуда как что кто кого кому сколько какой какая какие какое почему зачем чей",
    ),
    (
        Language::Polish,
        "kiedy gdzie dokąd skąd jak co kto kogo komu czego czym ile ilu jaki jaka jakie jakiej jaką który która które której \
         którą dlaczego czy czyj a i w we z ze na do od po o u za przez dla przy nad pod się jest są był była było były być \
         jestem mam ma mamy mają nie to ten ta te tego tej tym ja ty on ona my wy moje mój moja mojej naszego nasz nasza \
         nasze mnie mi trzeba jego jej ich",
    ),
    (
        Language::Czech,
        "kdy kde kam odkud jak co kdo koho komu kolik jaký jaká jaké který která které proč čí a i v ve z ze na do od po o u za \
         pro při nad pod se si je jsou byl byla bylo byly být jsem mám má máme ne to ten ta ty já my vy můj moje náš naše",
    ),
    (
        Language::Catalan,
        "què quan on com quant quanta quants quantes qui quin quina quins quines per de del dels la el els les un una a al amb \
         i o en es és són hi ha que meu meva",
    ),
    (
        Language::Greek,
        "πότε πού πώς τι ποιος ποια ποιο ποιες ποιοι πόσο πόση πόσα πόσες γιατί και σε από με για το τα η ο οι του της των στο \
         στη στην στα είναι ήταν έχω έχει έχουμε μου μας να που δεν",
    ),
    (
        Language::Estonian,
        "millal kus kuhu kust kuidas mis mida kes keda kui palju mitu milline miks ja on oli mu minu meie ei see",
    ),
    (
        Language::Lithuanian,
        "kada kur kaip kas ką kam kiek kuris kuri kokie koks kokia kodėl ir yra buvo mano mūsų į iš su už ar aš mes tai",
    ),
    (
        Language::Romanian,
        "când unde cum ce cine cui cât câtă câți câte care de la în pe cu și a al ale ai un o este e sunt am are avem meu mea \
         nostru din pentru să nu se",
    ),
    (
        Language::Turkish,
        "ne nerede nereye nereden kim kime kimin nasıl kaç hangi niçin neden zaman ve bir bu şu o mi mı mu mü ile için var yok \
         ben benim biz bizim ne kadar",
    ),
];

/// Characters of Japanese and Chinese that ask and bind. A pair of two such characters has no subject.
pub(crate) const BINDING_CHARACTERS: &str = "何誰私我你您他她们這这那哪什么甚麼怎样樣谁多少几幾的了吗嗎呢吧是在有个個和与與就都也还還会會能可以时時候为為对對把给給从從向到去来來请請问問要里裡儿";
