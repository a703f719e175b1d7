//! The program `refrain-burn`: prints the corpus, trains the tokenizer and the models, evaluates, exports, and writes
//! the sample notes. A thin client of the library.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::{env, fs};

use burn::tensor::Device;
use refrain::checkpoint::Checkpoint;
use refrain::drafting::Predictor;
use refrain_burn::distill::predictor::{self, PredictorRecipe};
use refrain_burn::distill::{Recorder, text};
use refrain_burn::model::ModelShape;
use refrain_burn::run::Run;
use refrain_burn::train::Recipe;
use refrain_burn::world::{Stage, sample};
use refrain_burn::{Error, checkpoint, evaluate, export, gguf, run, tokens, world};

const USAGE: &str = "\
refrain-burn COMMAND [--runs FOLDER] (default burn/runs)
  corpus [--count N]             print documents of the training text
  tokenizer                      train the tokenizer
  train target|draft [--stop-at STEP] [--easy-steps N] [--drill-steps N]
                     [--documents N] [--save-every N]
                                 train a model, or go on with it
  eval target|draft [--count N] [--prompts]
                                 ask questions about unseen notes, with the notes of wrong
                                 answers if asked for, and show each task
  export target|draft --out FOLDER|FILE.gguf
                                 write the Hugging Face layout, or GGUF in Q8_0
  notes --out FOLDER [--count N] write the sample notes and questions.json beside them
  rows --out FILE [--count N] [--skip N]
                                 write requests of each task for `refrain-bench`, as JSON
                                 Lines, but for the first of them
  predictor --target FILE --out FILE [--count N] [--layer N] [--rank N] [--steps N]
                                 train the target's early-exit predictor";

/// Seed of weights and corpus.
const SEED: u64 = 20_261_121;

/// Seed of the sample notes.
const NOTES_SEED: u64 = 7;

/// Seed of the rows for `refrain-bench`.
const ROWS_SEED: u64 = 11;

/// Seed of the predictor's training rows.
const PREDICTOR_SEED: u64 = 13;

fn main() -> ExitCode {
    match Args(env::args().skip(1).collect()).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("refrain-burn: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Args(Vec<String>);

impl Args {
    fn option<T: FromStr>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(at) = self.0.iter().position(|arg| arg == name) else { return Ok(None) };
        let value = self.0.get(at + 1).and_then(|value| value.parse().ok());
        value.map(Some).ok_or_else(|| Error::Usage(format!("{name} needs a value")))
    }

    fn model(&self) -> Result<&str, Error> {
        match self.0.get(1).map(String::as_str) {
            Some(name @ ("target" | "draft")) => Ok(name),
            _ => Err(Error::Usage("which model: target or draft?".to_owned())),
        }
    }

    fn runs(&self) -> Result<PathBuf, Error> {
        Ok(self.option("--runs")?.unwrap_or_else(|| PathBuf::from("burn/runs")))
    }

    fn out(&self) -> Result<PathBuf, Error> {
        self.option("--out")?.ok_or_else(|| Error::Usage("where to? give --out".to_owned()))
    }

    fn run(&self) -> Result<(), Error> {
        match self.0.first().map(String::as_str) {
            Some("corpus") => self.corpus(),
            Some("tokenizer") => {
                let runs = self.runs()?;
                fs::create_dir_all(&runs)?;
                Ok(tokens::train(SEED)?.save(runs.join("tokenizer.json"), false).map(drop)?)
            }
            Some("train") => self.train(),
            Some("eval") => self.eval(),
            Some("export") => self.export(),
            Some("notes") => self.notes(),
            Some("rows") => self.rows(),
            Some("predictor") => self.predictor(),
            _ => Err(Error::Usage(USAGE.to_owned())),
        }
    }

    fn corpus(&self) -> Result<(), Error> {
        for number in 0..self.option("--count")?.unwrap_or(20) {
            println!("{}\n=====", world::document(SEED, number, Stage::Full).text());
        }
        Ok(())
    }

    fn recipe(&self, model: &str) -> Result<Recipe, Error> {
        let default = Recipe::of(model, SEED);
        Ok(Recipe {
            documents: self.option("--documents")?.unwrap_or(default.documents),
            easy_steps: self.option("--easy-steps")?.unwrap_or(default.easy_steps),
            drill_steps: self.option("--drill-steps")?.unwrap_or(default.drill_steps),
            ..default
        })
    }

    fn train(&self) -> Result<(), Error> {
        let (model, runs) = (self.model()?, self.runs()?);
        let run = Run {
            folder: run::folder(&runs, model),
            recipe: self.recipe(model)?,
            stop_at: self.option("--stop-at")?,
            shape: ModelShape::named(model, tokens::VOCABULARY),
            save_every: self.option("--save-every")?.unwrap_or(250),
            questions: 40,
            report_every: 10,
        };
        run.train(&tokens::load(&runs.join("tokenizer.json"))?, &Device::default())?;
        Ok(())
    }

    /// The newest saved state of the model given on the command line.
    fn trained(&self) -> Result<(refrain_burn::model::Llama, tokenizers::Tokenizer), Error> {
        let (model, runs) = (self.model()?, self.runs()?);
        let missing = || Error::Usage(format!("no saved state of `{model}`: train it first"));
        let state = checkpoint::latest(&run::folder(&runs, model))?.ok_or_else(missing)?;
        let (trainer, _) = checkpoint::load(&state, &Device::default())?;
        Ok((trainer.plain_model(), tokens::load(&runs.join("tokenizer.json"))?))
    }

    fn eval(&self) -> Result<(), Error> {
        let (model, tokenizer) = self.trained()?;
        let device = Device::default();
        let count = self.option("--count")?.unwrap_or(200);
        let answers = evaluate::questions(&model, &tokenizer, count, &device)?;
        for wrong in answers.iter().filter(|answer| !answer.is_right()) {
            let (asked, fact) = (&wrong.question.question, &wrong.question.fact);
            println!("wrong: {asked} expected {fact:?}, got {:?}", wrong.answer);
            if self.0.iter().any(|arg| arg == "--prompts") {
                println!("{}\n", wrong.question.message);
            }
        }
        let right = answers.iter().filter(|answer| answer.is_right()).count();
        println!("{right} of {count} answers contain the asked fact");
        for (prompt, output) in evaluate::samples(&model, &tokenizer, &device)? {
            println!("\n{prompt}\n---\n{output}");
        }
        Ok(())
    }

    fn export(&self) -> Result<(), Error> {
        let (model, tokenizer) = self.trained()?;
        let out = self.out()?;
        if out.extension().is_some_and(|extension| extension == "gguf") {
            let name = format!("Refrain fixture, {}", self.model()?);
            gguf::write(&model, &tokenizer, &name, &out)
        } else {
            export::write_folder(&model, &tokenizer, &out)
        }
    }

    fn rows(&self) -> Result<(), Error> {
        let mut lines = String::new();
        let first: u64 = self.option("--skip")?.unwrap_or(0);
        let end = first.saturating_add(self.option("--count")?.unwrap_or(25));
        for row in world::rows::rows(ROWS_SEED, first..end) {
            lines += &(serde_json::to_string(&row)? + "\n");
        }
        Ok(fs::write(self.out()?, lines)?)
    }

    fn predictor(&self) -> Result<(), Error> {
        let out = self.out()?;
        let target: PathBuf = self
            .option("--target")?
            .ok_or_else(|| Error::Usage("of which model? give --target".to_owned()))?;
        let recorder = Recorder::open(&Checkpoint::open(&target)?, None)?;
        let mut passages = Vec::new();
        for row in world::rows::rows(PREDICTOR_SEED, 0..self.option("--count")?.unwrap_or(500)) {
            let tokenizer = recorder.engine().tokenizer();
            passages.extend(text::of_row(&row.prompt, &row.response, tokenizer, recorder.len_max(1024))?);
        }
        let default = PredictorRecipe::default();
        let recipe = PredictorRecipe {
            rank: self.option("--rank")?.unwrap_or(32),
            steps: self.option("--steps")?.unwrap_or(default.steps),
            ..default
        };
        let layer_idx = self.option("--layer")?.unwrap_or(recorder.engine().config().n_layers() / 2);
        let record = recorder.record(&passages, Some(layer_idx), usize::MAX, |_, _| {})?;
        println!("{} positions of {} passages", record.len(), passages.len());
        let (parts, held_out) =
            predictor::train(&record, recorder.engine(), layer_idx, &recipe, |step, loss| {
                if step.is_multiple_of(100) {
                    println!("step {step}/{} loss {loss:.3}", recipe.steps);
                }
            })?;
        println!(
            "held out: {} positions, first choice as the target's {:.1} %, divergence {:.3} nats",
            held_out.n_positions,
            100.0 * held_out.agreement,
            held_out.kl
        );
        Ok(Predictor::new(parts)?.write(&out)?)
    }

    fn notes(&self) -> Result<(), Error> {
        let out = self.out()?;
        fs::create_dir_all(&out)?;
        let (notes, questions) = sample::notes(NOTES_SEED, self.option("--count")?.unwrap_or(14));
        for note in notes {
            fs::write(out.join(note.file), note.text)?;
        }
        let questions = serde_json::to_string_pretty(&questions)? + "\n";
        Ok(fs::write(out.with_file_name("questions.json"), questions)?)
    }
}
