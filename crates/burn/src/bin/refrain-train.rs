//! The program `refrain-train`: trains predictors, draft models and draft heads on the user's text. A thin client of the library.

fn main() -> std::process::ExitCode {
    refrain_burn::program::main()
}
