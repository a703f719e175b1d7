//! Panics inside the crates that read outside data print nothing; other panics reach the hook of the app.

use std::process::Command;

use refrain_files::catch_quietly;

#[test]
fn a_caught_panic_prints_nothing_and_others_do() {
    let run = |hook: &str| {
        let program = std::env::current_exe().unwrap();
        let args = [
            "--exact",
            "quiet_panics::in_a_process_of_its_own",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ];
        let output = Command::new(program).args(args).env("HOOK", hook).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let default = run("default");
    for (text, n) in [("inside a call", 0), ("beside a call", 1), ("in the same thread", 1)] {
        assert_eq!(default.matches(text).count(), n, "{text}: {default}");
    }
    // An app's hook is kept, whether it was set before the first call or later.
    for hook in ["before", "later"] {
        let own = run(hook);
        assert_eq!(own.matches("of the app").count(), if hook == "before" { 2 } else { 3 }, "{own}");
    }
}

#[test]
#[ignore = "the test above runs it"]
fn in_a_process_of_its_own() {
    let hook = std::env::var("HOOK").unwrap();
    let set = || std::panic::set_hook(Box::new(|_| eprintln!("of the app")));
    if hook == "before" {
        set();
    }
    assert_eq!(catch_quietly(|| 3), Ok(3));
    if hook == "later" {
        set();
    }
    // Calls may be nested, and another thread is not quiet.
    let caught = catch_quietly(|| {
        assert_eq!(catch_quietly(|| 3), Ok(3));
        let other = std::thread::spawn(|| panic!("beside a call"));
        assert!(other.join().is_err());
        let number = 7;
        panic!("inside a call: {number}")
    });
    assert_eq!(caught.map(|()| 0), Err("inside a call: 7".to_owned()));
    assert!(std::panic::catch_unwind(|| panic!("in the same thread")).is_err());
}
