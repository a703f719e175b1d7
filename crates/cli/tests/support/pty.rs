//! The program in a pseudo-terminal, and what its screen shows.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Rows enough that nothing scrolls away.
const ROWS: u16 = 400;

/// A hang is a failure.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is done to a terminal when its screen shows a text, or ends with it if a `$` follows the text.
pub(crate) enum Then<'a> {
    Type(&'a str),
    /// Ctrl-C outside of a line that is read: the terminal controls no program, so the signal is sent.
    Interrupt,
    Resize(u16),
}

/// The end of a run.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) code: Option<i32>,
    /// The screen; a line that the terminal wraps is one line.
    pub(crate) text: String,
    /// Everything that the program has sent.
    pub(crate) sent: String,
}

struct Screen {
    parser: vt100::Parser,
    sent: Vec<u8>,
}

/// The screen of so many columns after a text.
pub(crate) fn rendered(text: &str, columns: u16) -> String {
    let mut parser = vt100::Parser::new(ROWS, columns, 0);
    parser.process(text.replace('\n', "\r\n").as_bytes());
    parser.screen().contents()
}

fn size(columns: u16) -> Winsize {
    Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Runs a command whose three streams are a terminal.
pub(crate) fn on_terminal(mut command: Command, columns: u16, script: &[(&str, Then<'_>)]) -> Shown {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&master).expect("granted");
    unlockpt(&master).expect("unlocked");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it opens");
    tcsetwinsize(&master, size(columns)).expect("it has a size");
    let stream = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a copy"));
    command.stdin(stream(&slave)).stdout(stream(&slave)).stderr(stream(&slave));
    command.env("REFRAIN_PROGRESS_AFTER_MS", "0");
    let mut child = command.spawn().expect("the program starts");
    // The copies in the command keep the terminal open, too.
    drop((slave, command));
    let parser = vt100::Parser::new(ROWS, columns, 0);
    let screen = Arc::new(Mutex::new(Screen { parser, sent: Vec::new() }));
    let mut reader = File::from(master.as_fd().try_clone_to_owned().expect("a copy"));
    let theirs = Arc::clone(&screen);
    let reading = thread::spawn(move || {
        let mut bytes = [0; 4096];
        // The end is an error on Linux: nobody has the other side open.
        while let Ok(n) = reader.read(&mut bytes) {
            if n == 0 {
                break;
            }
            let mut screen = theirs.lock().unwrap();
            screen.parser.process(&bytes[..n]);
            screen.sent.extend_from_slice(&bytes[..n]);
        }
    });
    let since = Instant::now();
    let mut writer = File::from(master.as_fd().try_clone_to_owned().expect("a copy"));
    for (awaited, then) in script {
        loop {
            let contents = screen.lock().unwrap().parser.screen().contents();
            let is_there = match awaited.strip_suffix('$') {
                Some(end) => contents.trim_end().ends_with(end),
                None => contents.contains(awaited),
            };
            if is_there {
                break;
            }
            assert!(since.elapsed() < PATIENCE && !reading.is_finished(), "no `{awaited}` in:\n{contents}");
            thread::sleep(Duration::from_millis(5));
        }
        match then {
            Then::Type(keys) => writer.write_all(keys.as_bytes()).expect("it reads"),
            Then::Interrupt => {
                kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
            }
            Then::Resize(columns) => {
                tcsetwinsize(&master, size(*columns)).expect("it has a size");
                screen.lock().unwrap().parser.screen_mut().set_size(ROWS, *columns);
            }
        }
    }
    while child.try_wait().expect("a child").is_none() {
        if since.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it does not end:\n{}", screen.lock().unwrap().parser.screen().contents());
        }
        thread::sleep(Duration::from_millis(5));
    }
    reading.join().expect("the reader ends");
    let screen = screen.lock().unwrap();
    Shown {
        code: child.wait().expect("a child").code(),
        text: screen.parser.screen().contents(),
        sent: String::from_utf8_lossy(&screen.sent).into_owned(),
    }
}

/// The text of both output streams of a command in one file, in the order in which it was written.
pub(crate) fn plain(mut command: Command) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let stream = || Stdio::from(File::options().append(true).open(file.path()).expect("it opens"));
    let status = command.stdin(Stdio::null()).stdout(stream()).stderr(stream()).status().expect("it runs");
    let text = std::fs::read_to_string(file.path()).expect("text");
    assert!(status.success(), "{text}");
    text
}

/// A text without what differs from run to run: numbers.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for line in text.trim_end().lines() {
        let mut is_number = false;
        for c in line.trim_end().chars() {
            let was_number = is_number;
            is_number = c.is_ascii_digit() || (was_number && c == '.');
            match is_number {
                true if was_number => {}
                true => out.push('#'),
                false => out.push(c),
            }
        }
        out.push('\n');
    }
    out
}
