//! Questions whose answers are known: over notes in ten languages (`fixtures/quality`), and over the passages of published sets.
//!
//! `notes.txt` has the notes, each behind a line with its name. A row of `questions.tsv` is a language, the note, words of the passage
//! that answers, and the question; `-` stands for no answer in the notes. A row of `conversations.tsv` is a conversation, the note, words
//! of the passage, and the next question.

#![allow(dead_code, reason = "the bench and the test use parts of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use refrain_index::notes::{NoteHit, NotesIndex, NotesOptions, NotesWriter, Search};
use serde_json::Value;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A question, and what answers it.
pub(crate) struct Question {
    /// Its language, or the set it belongs to.
    pub(crate) group: String,
    pub(crate) text: String,
    /// The questions before it in its conversation, newest first.
    pub(crate) earlier: Vec<String>,
    /// The question in words that need no conversation, as people have written it for a published set.
    pub(crate) rewritten: Option<String>,
    /// The notes that answer; none if no note does.
    pub(crate) notes: BTreeSet<String>,
    /// Words of the passage that answers; empty: every passage of the notes does.
    pub(crate) words: String,
}

impl Question {
    /// Whether a passage answers.
    pub(crate) fn is_answered_by(&self, hit: &NoteHit) -> bool {
        self.notes.contains(&name(&hit.passage.path)) && hit.passage.text.contains(&self.words)
    }
}

/// The name of a note: its folder and its file.
fn name(path: &Path) -> String {
    let part = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    format!("{}/{}", part(path.parent()), part(Some(path)))
}

/// Notes with an index in a temporary folder.
pub(crate) struct Notes {
    folder: tempfile::TempDir,
}

impl Notes {
    pub(crate) fn new(notes: impl IntoIterator<Item = (String, String)>) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        for (name, text) in notes {
            let path = folder.path().join("notes").join(name);
            fs::create_dir_all(path.parent().ok_or("a note without a folder")?)?;
            fs::write(path, text)?;
        }
        let mut writer = NotesWriter::open(&folder.path().join("index"), NotesOptions::default())?;
        writer.add(&[folder.path().join("notes")])?;
        writer.update(&mut |_, _| ControlFlow::Continue(()))?;
        Ok(Self { folder })
    }

    pub(crate) fn index(&self) -> Outcome<NotesIndex> {
        Ok(NotesIndex::open(&self.folder.path().join("index"))?)
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/quality")
}

/// The notes of the fixture, with a diary in each language whose days have the function words of questions.
pub(crate) fn notes() -> Outcome<Vec<(String, String)>> {
    let text = fs::read_to_string(fixtures().join("notes.txt"))?;
    let notes = text.split("=== ").filter_map(|note| note.split_once('\n'));
    let mut notes: Vec<(String, String)> =
        notes.map(|(name, text)| (name.trim().to_owned(), text.to_owned())).collect();
    for (language, heading, sentences) in DIARIES {
        for day in 1..=24 {
            let mut text = format!("# {heading} {day}\n\n");
            for i in 0..4 {
                let _ = writeln!(text, "{}", sentences[(day * 7 + i * (day % 5 + 1)) % sentences.len()]);
            }
            notes.push((format!("{language}/{heading}-{day}.md"), text));
        }
    }
    Ok(notes)
}

/// The questions over them.
pub(crate) fn questions() -> Outcome<Vec<Question>> {
    let text = fs::read_to_string(fixtures().join("questions.tsv"))?;
    let rows = text.lines().map(|row| -> Outcome<Question> {
        let [language, note, words, question] = row.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("four columns are expected: {row}").into());
        };
        let notes = (note != "-").then(|| note.to_owned()).into_iter().collect();
        let words = if note == "-" { String::new() } else { words.to_owned() };
        Ok(Question {
            group: language.to_owned(),
            text: question.to_owned(),
            earlier: Vec::new(),
            rewritten: None,
            notes,
            words,
        })
    });
    rows.collect()
}

/// The questions of the conversations behind the first ones.
pub(crate) fn follow_ups() -> Outcome<Vec<Question>> {
    let text = fs::read_to_string(fixtures().join("conversations.tsv"))?;
    let mut asked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut questions = Vec::new();
    for row in text.lines() {
        let [conversation, note, words, question] = row.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("four columns are expected: {row}").into());
        };
        let before = asked.entry(conversation.to_owned()).or_default();
        if !before.is_empty() {
            questions.push(Question {
                group: note.split('/').next().unwrap_or_default().to_owned(),
                text: question.to_owned(),
                earlier: before.iter().rev().cloned().collect(),
                rewritten: None,
                notes: BTreeSet::from([note.to_owned()]),
                words: words.to_owned(),
            });
        }
        before.push(question.to_owned());
    }
    Ok(questions)
}

/// A published set: its name, its notes with their texts, and its questions.
type Published = (&'static str, Vec<(String, String)>, Vec<Question>);

/// The passages of a published set and its questions, and what the set is; `None` if the folder has none that is known.
///
/// Of MT-RAG (<https://github.com/IBM/mt-rag-benchmark>), `mtragun-human/generation_tasks/reference.jsonl`: conversations, of which each
/// row has the next question and the passages that answer it; and of its first set the questions that people have rewritten. Of ClapNQ (<https://github.com/primeqa/clapnq>),
/// `annotated_data/dev/*.jsonl`: questions with a passage each, of which half answer nothing. The passages of all rows are searched; the
/// published corpora are larger.
pub(crate) fn published(folder: &Path) -> Outcome<Option<Published>> {
    let conversations = folder.join("mtragun-human/generation_tasks/reference.jsonl");
    let dev = folder.join("annotated_data/dev");
    let (mut notes, mut questions) = (BTreeMap::new(), Vec::new());
    if conversations.exists() {
        for row in rows(&conversations)? {
            let group = row["Collection"].as_str().unwrap_or("mt-rag").to_owned();
            let mut answers = BTreeSet::new();
            for passage in row["contexts"].as_array().into_iter().flatten() {
                let (Some(id), Some(text)) = (passage["document_id"].as_str(), passage["text"].as_str())
                else {
                    continue;
                };
                let note = format!("{group}/{}.txt", id.replace('/', "_"));
                notes.insert(note.clone(), text.to_owned());
                answers.insert(note);
            }
            let turns = row["input"].as_array().into_iter().flatten();
            let mut asked: Vec<String> = turns
                .filter(|turn| turn["speaker"] == "user")
                .filter_map(|turn| Some(turn["text"].as_str()?.to_owned()))
                .collect();
            let Some(text) = asked.pop() else { continue };
            asked.reverse();
            let (rewritten, words) = (None, String::new());
            questions.push(Question { group, text, earlier: asked, rewritten, notes: answers, words });
        }
        rewritten(folder, &mut notes, &mut questions)?;
        return Ok(Some(("MT-RAG", notes.into_iter().collect(), questions)));
    }
    if dev.exists() {
        for (kind, is_answered) in [("answerable", true), ("unanswerable", false)] {
            for row in rows(&dev.join(format!("clapnq_dev_{kind}.jsonl")))? {
                let (id, passage) = (row["id"].as_str().unwrap_or_default(), &row["passages"][0]);
                let note = format!("clapnq/{id}.md");
                let text = |name: &str| passage[name].as_str().unwrap_or_default();
                notes.insert(note.clone(), format!("# {}\n\n{}\n", text("title"), text("text")));
                questions.push(Question {
                    group: kind.to_owned(),
                    text: row["input"].as_str().unwrap_or_default().to_owned(),
                    earlier: Vec::new(),
                    rewritten: None,
                    notes: is_answered.then_some(note).into_iter().collect(),
                    words: String::new(),
                });
            }
        }
        return Ok(Some(("ClapNQ", notes.into_iter().collect(), questions)));
    }
    Ok(None)
}

/// Adds the questions of MT-RAG that people have rewritten, with the passages of its evaluations: those questions whose passages are all
/// there.
fn rewritten(
    folder: &Path,
    notes: &mut BTreeMap<String, String>,
    questions: &mut Vec<Question>,
) -> Outcome<()> {
    let human = folder.join("mtrag-human");
    let evaluations = human.join("evaluations/reference_subset_with_human_evaluations.json");
    let evaluations: Value = serde_json::from_str(&fs::read_to_string(evaluations)?)?;
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for note in notes.keys() {
        let id = note.split('/').nth(1).and_then(|file| file.strip_suffix(".txt")).unwrap_or_default();
        known.insert(id.to_owned(), note.clone());
    }
    for document in evaluations["documents"].as_array().into_iter().flatten() {
        let (Some(id), Some(text)) = (document["document_id"].as_str(), document["text"].as_str()) else {
            continue;
        };
        let id = id.replace('/', "_");
        let note = format!("evaluations/{id}.txt");
        known.entry(id).or_insert_with(|| {
            notes.insert(note.clone(), text.to_owned());
            note
        });
    }
    for set in ["clapnq", "cloud", "fiqa", "govt"] {
        let tasks = human.join("retrieval_tasks").join(set);
        let texts = |kind: &str| -> Outcome<BTreeMap<String, String>> {
            let rows = rows(&tasks.join(format!("{set}_{kind}.jsonl")))?;
            let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
            Ok(rows.iter().map(|row| (text(row, "_id"), text(row, "text"))).collect())
        };
        let (asked, rewritten) = (texts("questions")?, texts("rewrite")?);
        let mut answers: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
        for row in fs::read_to_string(tasks.join("qrels/dev.tsv"))?.lines().skip(1) {
            let mut row = row.split('\t');
            let (Some(question), Some(passage)) = (row.next(), row.next()) else { continue };
            // Of a passage that was divided, the place in it follows.
            let whole = passage.rsplitn(3, '-').last().unwrap_or(passage);
            let note = [passage, whole].iter().find_map(|id| known.get(&id.replace('/', "_")));
            answers.entry(question.to_owned()).or_default().push(note.cloned());
        }
        for (id, notes) in answers {
            let Some(notes) = notes.into_iter().collect::<Option<BTreeSet<String>>>() else { continue };
            let turns = asked.get(&id).map(String::as_str).unwrap_or_default().split("|user|:");
            let mut turns: Vec<String> =
                turns.map(|turn| turn.trim().to_owned()).filter(|turn| !turn.is_empty()).collect();
            let Some(text) = turns.pop() else { continue };
            turns.reverse();
            let rewritten = rewritten.get(&id).map(|text| text.replace("|user|:", "").trim().to_owned());
            let group = format!("human {set}");
            questions.push(Question { group, text, earlier: turns, rewritten, notes, words: String::new() });
        }
    }
    Ok(())
}

fn rows(file: &Path) -> Outcome<Vec<Value>> {
    let text = fs::read_to_string(file)?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// How well a search finds what answers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Score {
    /// Questions that a note answers.
    pub(crate) n: usize,
    /// Those whose answer is the first passage, and among the first five.
    pub(crate) n_first: usize,
    pub(crate) n_among_five: usize,
    /// The sum of the shares of their notes that are among the first five notes.
    pub(crate) notes_among_five: f64,
}

impl Score {
    pub(crate) fn first(&self) -> f64 {
        self.n_first as f64 / self.n as f64
    }

    pub(crate) fn among_five(&self) -> f64 {
        self.n_among_five as f64 / self.n as f64
    }
}

/// The scores by group, and that of all, which has no name.
pub(crate) fn score(
    questions: &[Question],
    mut search: impl FnMut(&Question) -> Outcome<Vec<NoteHit>>,
) -> Outcome<BTreeMap<String, Score>> {
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    for question in questions.iter().filter(|question| !question.notes.is_empty()) {
        let hits = search(question)?;
        let rank = hits.iter().position(|hit| question.is_answered_by(hit));
        let mut first_notes: Vec<String> = Vec::new();
        for note in hits.iter().map(|hit| name(&hit.passage.path)) {
            if first_notes.len() < 5 && !first_notes.contains(&note) {
                first_notes.push(note);
            }
        }
        let n_found = first_notes.iter().filter(|note| question.notes.contains(*note)).count();
        for group in [&question.group, ""] {
            let score = scores.entry(group.to_owned()).or_default();
            score.n += 1;
            score.n_first += usize::from(rank == Some(0));
            score.n_among_five += usize::from(rank.is_some_and(|rank| rank < 5));
            score.notes_among_five += n_found as f64 / question.notes.len() as f64;
        }
    }
    Ok(scores)
}

/// How many questions with an answer are refused because no one of four passages covers `min` of them, and how many without an answer
/// are not.
pub(crate) fn covered(questions: &[Question], index: &NotesIndex, min: f32) -> Outcome<(usize, usize)> {
    let (mut n_refused, mut n_answered) = (0, 0);
    for question in questions {
        let mut search = Search::new(&question.text, 4);
        search.earlier = question.earlier.iter().map(String::as_str).collect();
        let is_covered = index.search(&search)?.iter().any(|hit| hit.coverage >= min);
        match question.notes.is_empty() {
            true => n_answered += usize::from(is_covered),
            false => n_refused += usize::from(!is_covered),
        }
    }
    Ok((n_refused, n_answered))
}

/// Prints the scores, of follow-up questions alone and with the words of earlier ones, and false refusals and answers by threshold.
pub(crate) fn print(what: &str, index: &NotesIndex, questions: &[Question]) -> Outcome<()> {
    let alone = score(questions, |question| Ok(index.search(&Search::new(&question.text, 40))?))?;
    print!("{}", table(what, &alone));
    if questions.iter().any(|question| !question.earlier.is_empty()) {
        let with_earlier = score(questions, |question| {
            let mut search = Search::new(&question.text, 40);
            search.earlier = question.earlier.iter().map(String::as_str).collect();
            Ok(index.search(&search)?)
        })?;
        print!("{}", table("with the words of earlier questions", &with_earlier));
    }
    let of_people: Vec<Question> = questions
        .iter()
        .filter_map(|question| {
            let text = question.rewritten.clone()?;
            let (group, notes) = (question.group.clone(), question.notes.clone());
            Some(Question { group, text, earlier: Vec::new(), rewritten: None, notes, words: String::new() })
        })
        .collect();
    if !of_people.is_empty() {
        let scores = score(&of_people, |question| Ok(index.search(&Search::new(&question.text, 40))?))?;
        print!("{}", table("as people have rewritten them", &scores));
    }
    let n_unanswered = questions.iter().filter(|question| question.notes.is_empty()).count();
    for min in [0.2, 0.25, 0.3, 0.35, 0.4, 0.5] {
        let (n_refused, n_answered) = covered(questions, index, min)?;
        let n = questions.len() - n_unanswered;
        println!(
            "  coverage {min:.2}: {n_refused} of {n} refused, {n_answered} of {n_unanswered} without an answer are not"
        );
    }
    Ok(())
}

/// A line per group.
pub(crate) fn table(what: &str, scores: &BTreeMap<String, Score>) -> String {
    let mut table = format!("{what}\n");
    for (group, score) in scores {
        let group = if group.is_empty() { "all" } else { group };
        let (n, first, five) = (score.n, score.first(), score.among_five());
        let notes = score.notes_among_five / n as f64;
        let _ = writeln!(
            table,
            "  {group:<13} {n:>4} questions   first {first:.3}   among five {five:.3}   notes@5 {notes:.3}"
        );
    }
    table
}

/// A language, the heading of its diary, and sentences with many function words.
type Diary = (&'static str, &'static str, [&'static str; 9]);

const DIARIES: [Diary; 10] = [
    (
        "en",
        "Day",
        [
            "What I am going to do about it I do not know, and who does?",
            "When we were there, they did not have what we wanted.",
            "How much of this is my own doing? I have no idea how it has come to be what it is.",
            "We went for a walk along the river, and then we had tea at home.",
            "I am tired, and I am not the only one who is.",
            "Which way is the right one, and where does it go?",
            "The post came late. There was nothing for me in it.",
            "She asked me what the plan is for the weekend, and I did not have one.",
            "In the afternoon it rained for a long time.",
        ],
    ),
    (
        "de",
        "Tag",
        [
            "Was ich damit machen soll, weiß ich nicht, und wer weiß es schon?",
            "Als wir dort waren, hatten sie nicht, was wir haben wollten.",
            "Wie viel davon ist meine Schuld? Ich bin mir nicht sicher.",
            "Wir sind am Fluss gewesen und haben danach zu Hause Tee getrunken.",
            "Ich bin müde, und ich bin nicht der Einzige, der es ist.",
            "Wann und wo wir uns treffen, wird sich zeigen, wenn es so weit ist.",
            "Die Post ist spät gekommen. Für mich war nichts dabei.",
            "Sie hat mich gefragt, welche Pläne wir für das Wochenende haben.",
            "Am Nachmittag hat es lange geregnet.",
        ],
    ),
    (
        "fr",
        "Jour",
        [
            "Qu'est-ce que je vais en faire, je ne le sais pas, et qui le sait ?",
            "Quand nous étions là-bas, ils n'avaient pas ce que nous voulions.",
            "À quoi cela sert, et combien de fois faut-il que je le dise ?",
            "Nous sommes allés au bord de la rivière, puis nous avons bu un thé.",
            "Je suis fatiguée, et je ne suis pas la seule à l'être.",
            "Où est-ce que nous allons, et par quel chemin ?",
            "Le courrier est arrivé tard. Il n'y avait rien pour moi.",
            "Elle m'a demandé quel est le programme pour ce week-end.",
            "L'après-midi, il a plu pendant longtemps.",
        ],
    ),
    (
        "es",
        "Día",
        [
            "No sé qué voy a hacer con esto, ¿y quién lo sabe?",
            "Cuando estuvimos allí, no tenían lo que queríamos.",
            "¿Cuánto de esto es culpa mía? No lo sé, ni cómo ha llegado a ser así.",
            "Fuimos a pasear por el río y luego tomamos un té en casa.",
            "Estoy cansada, y no soy la única que lo está.",
            "¿A dónde vamos, y por dónde, y a qué hora?",
            "El correo llegó tarde. No había nada para mí.",
            "Ella me preguntó cuál es el plan para el fin de semana.",
            "Por la tarde llovió durante mucho tiempo.",
        ],
    ),
    (
        "it",
        "Giorno",
        [
            "Che cosa ne devo fare non lo so, e chi lo sa?",
            "Quando eravamo là, non avevano quello che volevamo.",
            "Quanto di questo è colpa mia? Non so come sia diventato così.",
            "Siamo andati al fiume e poi abbiamo bevuto un tè a casa.",
            "Sono stanca, e non sono la sola a esserlo.",
            "Dove andiamo, e a che ora, e per quale strada?",
            "La posta è arrivata tardi. Non c'era niente per me.",
            "Lei mi ha chiesto quali sono i piani per il fine settimana.",
            "Nel pomeriggio ha piovuto a lungo.",
        ],
    ),
    (
        "pt",
        "Dia",
        [
            "O que é que vou fazer com isto não sei, e quem é que sabe?",
            "Quando estivemos lá, não tinham o que nós queríamos.",
            "Quanto disto é culpa minha? Não sei como é que ficou assim.",
            "Fomos passear junto ao rio e depois tomámos um chá em casa.",
            "Estou cansada, e não sou a única que está.",
            "Onde é que vamos, e a que horas, e por qual caminho?",
            "O correio chegou tarde. Não havia nada para mim.",
            "Ela perguntou-me qual é o plano para o fim de semana.",
            "À tarde choveu durante muito tempo.",
        ],
    ),
    (
        "nl",
        "Dag",
        [
            "Wat ik ermee moet doen weet ik niet, en wie wel?",
            "Toen we daar waren, hadden ze niet wat we wilden hebben.",
            "Hoeveel hiervan is mijn schuld? Ik ben er niet zeker van.",
            "We zijn langs de rivier gelopen en hebben daarna thuis thee gedronken.",
            "Ik ben moe, en ik ben niet de enige die het is.",
            "Waar gaan we heen, en wanneer, en welke weg nemen we?",
            "De post kwam laat. Er was voor mij niets bij.",
            "Ze vroeg me wat de plannen zijn voor het weekend.",
            "In de middag heeft het lang geregend.",
        ],
    ),
    (
        "pl",
        "Dzień",
        [
            "Co mam z tym zrobić, tego nie wiem, a kto to wie?",
            "Kiedy tam byliśmy, nie mieli tego, czego chcieliśmy.",
            "Ile z tego to moja wina? Nie wiem, jak do tego doszło.",
            "Poszliśmy nad rzekę, a potem piliśmy herbatę w domu.",
            "Jestem zmęczona i nie jestem jedyna, która jest.",
            "Gdzie idziemy, o której i jaką drogą?",
            "Poczta przyszła późno. Nie było w niej nic dla mnie.",
            "Zapytała mnie, jakie są plany na weekend.",
            "Po południu długo padał deszcz.",
        ],
    ),
    (
        "ja",
        "一日",
        [
            "何をすればいいのか分からないし、誰に聞けばいいのかも分からない。",
            "いつ始まるのですかと聞かれたが、まだ決まっていません。",
            "どこへ行くのか、何時に行くのか、いくらかかるのか。",
            "川のそばを歩いて、それから家でお茶を飲みました。",
            "私は疲れていますが、疲れているのは私だけではありません。",
            "何がありますかと聞かれて、何もありませんと答えた。",
            "郵便は遅く届いた。私あてのものはなかった。",
            "週末の予定は何ですかと彼女に聞かれた。",
            "午後は長い間、雨が降っていました。",
        ],
    ),
    (
        "zh",
        "日子",
        [
            "我不知道要做什么,谁知道呢?",
            "什么时候开始,在哪里,要多少钱,都还没有决定。",
            "我们去了那里,可是他们没有我们要的东西。",
            "在河边走了走,然后回家喝茶。",
            "我很累,累的不只是我一个人。",
            "我们要去哪里,几点去,走什么路?",
            "邮件来得很晚,里面没有给我的。",
            "她问我周末有什么计划,我说没有。",
            "下午下了很长时间的雨。",
        ],
    ),
];
