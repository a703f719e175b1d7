//! The program `refrain-bench`: measures drafting, with Refrain and with published rules. A thin client of the library.

fn main() -> std::process::ExitCode {
    refrain_bench::program::main()
}
