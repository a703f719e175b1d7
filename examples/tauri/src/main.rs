//! The window: commands over [`Answers`], whose events go to the page through a channel.

#![cfg_attr(not(debug_assertions), windows_subsystem = "windows")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use refrain_tauri::{Answers, Told};
use tauri::ipc::Channel;
use tauri::{Manager, State};

#[derive(Default)]
struct Open(Mutex<Option<Arc<Answers>>>);

impl Open {
    fn get(&self) -> Result<Arc<Answers>, String> {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        answers.ok_or_else(|| "Open a model and notes first.".to_owned())
    }
}

/// Runs `work` on a thread that may wait: a command would hold a thread of the window's tasks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tauri::async_runtime::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

#[tauri::command]
async fn open(
    app: tauri::AppHandle,
    state: State<'_, Open>,
    model: PathBuf,
    notes: PathBuf,
    told: Channel<Told>,
) -> Result<(), String> {
    let index = app.path().app_data_dir().map_err(|error| error.to_string())?.join("index");
    std::fs::create_dir_all(&index).map_err(|error| error.to_string())?;
    // (A page that is gone hears nothing.)
    let answers =
        blocking(move || Answers::open(&model, &notes, &index, |event| drop(told.send(event)))).await?;
    *state.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(answers));
    Ok(())
}

#[tauri::command]
async fn ask(state: State<'_, Open>, question: String, told: Channel<Told>) -> Result<(), String> {
    let answers = state.get()?;
    let of_thread = Arc::clone(&answers);
    let tell = move |event| {
        if told.send(event).is_err() {
            of_thread.stop();
        }
    };
    blocking(move || answers.ask(&question, tell)).await
}

#[tauri::command]
fn stop(state: State<'_, Open>) -> Result<(), String> {
    state.get()?.stop();
    Ok(())
}

fn main() {
    let app = tauri::Builder::default()
        .manage(Open::default())
        .invoke_handler(tauri::generate_handler![open, ask, stop]);
    if let Err(error) = app.run(tauri::generate_context!()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
