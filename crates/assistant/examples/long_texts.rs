//! Edits a note that is longer than the context, window by window, and summarises it in parts: how long the estimates say that both take,
//! and how long they do.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example long_texts -- [MODEL.gguf]
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use refrain::{Engine, EngineOptions};
use refrain_assistant::{
    Assistant, AssistantOptions, EditRequest, Estimate, Job, JobEvent, JobOptions, SummarizeRequest,
};

fn main() -> Result<(), Box<dyn Error>> {
    let fixture = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
    let model = std::env::args_os().nth(1).map_or_else(fixture, PathBuf::from);
    let engine = Engine::open(model, EngineOptions::default())?;
    let day = |n: usize| {
        format!(
            "## Day {n}\n\nThe trip {n} starts at {n} o'clock and costs {n} euros. It ends on Monday.\n\n"
        )
    };
    let note: String = (0..120).map(day).collect();
    for n_together in [1, 4] {
        let mut options = AssistantOptions::default();
        options.session.context_len = Some(1024);
        options.n_parts_together = n_together;
        let assistant = Assistant::builder(engine.clone()).options(options).build()?;
        for _ in 0..2 {
            let request = SummarizeRequest::text("Trips", &*note);
            let job = assistant.summarize(request, JobOptions::default())?;
            measure(&format!("summary, {n_together} parts at the same time"), job)?;
        }
        if n_together == 1 {
            let job = assistant.edit(EditRequest::new(&*note, "Say Tuesday."), JobOptions::default())?;
            measure("edit", job)?;
        }
    }
    Ok(())
}

/// Runs a job, and prints the time beside the first estimate and those of its course.
fn measure<T>(name: &str, job: Job<T>) -> Result<T, Box<dyn Error>> {
    let since = Instant::now();
    let mut estimates: Vec<(Duration, Estimate)> = Vec::new();
    let result = job.run_with(|event| {
        if let JobEvent::Estimate(estimate) = event {
            estimates.push((since.elapsed(), *estimate));
        }
    })?;
    let time = since.elapsed();
    let Some((_, Estimate { n_prompts, read_tokens, written_tokens, .. })) = estimates.first() else {
        println!("{name}: one prompt");
        return Ok(result);
    };
    println!("{name}: {n_prompts} prompts, {read_tokens} tokens to read, about {written_tokens} to write");
    println!("  took {:.2} s", time.as_secs_f64());
    for (at, estimate) in &estimates {
        let (at, left) = (at.as_secs_f64(), estimate.time.as_secs_f64());
        println!("  at {at:.2} s: {left:.2} s left, in fact {:.2} s", time.as_secs_f64() - at);
    }
    Ok(result)
}
