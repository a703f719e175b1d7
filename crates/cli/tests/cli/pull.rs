//! `refrain model pull` against a hub that fails in every way, and the models that it keeps.

use std::fs;
use std::time::Duration;

use crate::hub::{self, COMMIT, Files, Hub, Place, REPO, Reply, Request, bytes, files, finish, run};
use crate::support::{self, arg, model};

/// A repository with one small file.
fn small() -> Files {
    files([("m-Q4_0.gguf", bytes(300_000)), ("README.md", b"words".to_vec())])
}

/// A hub whose answers to downloads a test changes.
fn failing(answer: impl Fn(&Request, usize, Reply) -> Reply + Send + Sync + 'static) -> Hub {
    Hub::start(
        small(),
        move |request, n, good| if request.is_listing() { good } else { answer(request, n, good) },
    )
}

/// A pull that succeeds against a hub that fails at first.
#[track_caller]
fn recovers(answer: impl Fn(&Request, usize, Reply) -> Reply + Send + Sync + 'static) -> Vec<Request> {
    let (place, hub) = (Place::new(), failing(answer));
    run(place.pull(&hub, &[])).done();
    assert_eq!(fs::read(place.file("m-Q4_0.gguf")).unwrap(), bytes(300_000));
    assert_eq!(place.files(), ["models/owner/model-GGUF/m-Q4_0.gguf"]);
    hub.downloads()
}

/// The message of a pull that fails with `code` and leaves no file under its name.
#[track_caller]
fn fails(code: i32, answer: impl Fn(&Request, usize, Reply) -> Reply + Send + Sync + 'static) -> String {
    let (place, hub) = (Place::new(), failing(answer));
    let ran = run(place.pull(&hub, &["--attempts", "1,5"]));
    assert_eq!(ran.code, Some(code), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    assert!(!place.file("m-Q4_0.gguf").exists());
    ran.stderr
}

#[test]
fn a_model_is_pulled_listed_run_by_its_name_and_removed() {
    let (place, model) = (Place::new(), fs::read(model()).unwrap());
    let hub =
        Hub::start(files([("tiny-Q8_0.gguf", model.clone()), ("README.md", vec![1])]), |_, _, good| good);
    let pulled = run(place.pull(&hub, &["--json"])).done();
    let pulled: serde_json::Value = serde_json::from_str(&pulled).unwrap();
    assert_eq!(pulled["name"], REPO);
    assert_eq!(pulled["commit"], COMMIT);
    assert_eq!(fs::read(place.file("tiny-Q8_0.gguf")).unwrap(), model);
    assert_eq!(place.files(), ["models/owner/model-GGUF/tiny-Q8_0.gguf"], "only the model");

    let inspected = place.run(&["model", "inspect", REPO, "--json"]).done();
    assert!(inspected.contains("llama"), "{inspected}");
    let answer = place
        .run(&["run", "--store", "none", "--model", REPO, "--max-tokens", "3", "--ignore-eos", "Hello"])
        .done();
    assert!(!answer.is_empty());
    let settings = place.path().join("config.toml");
    fs::write(&settings, format!("model = \"{REPO}:Q8_0\"\n")).unwrap();
    place.run(&["--config", arg(&settings), "run", "--store", "none", "--max-tokens", "3", "Hello"]).done();

    let listed = place.run(&["model", "list"]).done();
    assert!(listed.starts_with(REPO) && listed.contains(&COMMIT[..8]), "{listed}");
    let listed: serde_json::Value =
        serde_json::from_str(&place.run(&["model", "list", "--json"]).done()).unwrap();
    assert_eq!(listed["models"][0]["bytes"], model.len());
    assert_eq!(listed["unfinished"], serde_json::json!([]));

    // The commit is a part of the name, too; another revision is another model.
    place.run(&["model", "inspect", &format!("{REPO}@{COMMIT}")]).done();
    assert!(
        place.run(&["model", "inspect", &format!("{REPO}@main")]).refused(3).contains("without a revision")
    );
    place.run(&["model", "rm", &format!("{REPO}@{COMMIT}")]).refused(2);

    // A second pull finds it.
    let n_before = hub.downloads().len();
    let again = run(place.pull(&hub, &[]));
    assert!(again.stderr.contains("already"), "{}", again.stderr);
    assert_eq!(hub.downloads().len(), n_before);

    let removed = place.run(&["model", "rm", REPO, "--json"]).done();
    let removed: serde_json::Value = serde_json::from_str(&removed).unwrap();
    assert_eq!(removed["bytes"], model.len());
    assert_eq!(place.files(), ["config.toml"]);
    let refused = place.run(&["run", "--model", REPO, "Hello"]).refused(3);
    assert!(refused.contains("refrain model pull"), "{refused}");
}

#[cfg(unix)]
#[test]
fn a_server_offers_pulled_models() {
    use std::io::{BufRead, BufReader, Read, Write};
    let place = Place::new();
    let hub = Hub::start(files([("tiny-Q8_0.gguf", fs::read(model()).unwrap())]), |_, _, good| good);
    run(place.pull(&hub, &[])).done();
    for (more, others) in [(&["--pulled"][..], "refrain-embedded"), (&["--model", REPO, "--pulled"], "")] {
        let args = [&["serve", "--listen", "0", "--threads", "1"], more].concat();
        let mut server = place.command(&args).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("http://").unwrap_or_else(|| panic!("{line:?}"));
        let ask = |head: &str, body: &str| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let length = body.len();
            let request = format!(
                "{head} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes()).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            reply
        };
        let listed = ask("GET /v1/models", "");
        assert_eq!(listed.matches(&format!("\"id\":\"{REPO}\"")).count(), 1, "{listed}");
        assert!(listed.contains(others), "{listed}");
        let body = format!("{{\"model\": \"{REPO}\", \"prompt\": \"Hello\", \"max_tokens\": 3}}");
        let reply = ask("POST /v1/completions", &body);
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        std::process::Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
        let ran = finish(server);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
}

#[test]
fn a_path_that_exists_wins_over_a_name() {
    let place = Place::new();
    let folder = place.path().join("owner");
    fs::create_dir(&folder).unwrap();
    fs::copy(model(), folder.join("model-GGUF")).unwrap();
    let mut command = place.command(&["run", "--model", REPO, "--max-tokens", "2", "Hello"]);
    command.current_dir(place.path());
    run(command).done();
}

#[test]
fn safetensors_come_with_their_small_files_under_both_hashes() {
    let place = Place::new();
    let parts = [
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{ }".to_vec()),
        ("model.safetensors", bytes(70_000)),
        ("pytorch_model.bin", bytes(10)),
    ];
    let hub = Hub::start(files(parts), |_, _, good| good);
    let ran = run(place.pull(&hub, &[]));
    assert!(ran.stderr.contains("cannot run the model"), "an empty config.json: {}", ran.stderr);
    let folder = ran.done();
    assert_eq!(folder.trim_end(), arg(&place.file("")).trim_end_matches('/'));
    let below = |name: &str| format!("models/owner/model-GGUF/{name}");
    assert_eq!(place.files(), [below("config.json"), below("model.safetensors"), below("tokenizer.json")]);
    // A small file with wrong bytes is noticed, too.
    let place = Place::new();
    let hub = Hub::start(
        files([
            ("config.json", b"{}".to_vec()),
            ("tokenizer.json", b"{ }".to_vec()),
            ("model.safetensors", bytes(9)),
        ]),
        |request, _, good| match request.path.ends_with("config.json") {
            true => Reply { body: b"[]".to_vec(), ..good },
            false => good,
        },
    );
    let ran = run(place.pull(&hub, &[]));
    assert!(ran.code == Some(1) && ran.stderr.contains("config.json"), "{}", ran.stderr);
}

/// The suggested model for embeddings: notes are searched by words, until it is there.
#[test]
fn the_suggested_encoder_makes_vectors_once_it_was_pulled() {
    const NAME: &str = "sentence-transformers/all-MiniLM-L6-v2";
    let golden = support::repository("tests/golden/encoders/bert");
    let names = [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
    ];
    let encoder = files(names.map(|name| (name, fs::read(golden.join(name)).unwrap())));
    let answered = encoder.clone();
    let hub = Hub::start(encoder, move |request, _, _| {
        let path = request.path.replace(NAME, REPO);
        let mut reply = hub::good(&answered, &Request { path, headers: request.headers.clone() });
        if request.is_listing() {
            let listing = String::from_utf8(reply.body).unwrap().replace(REPO, NAME);
            reply = Reply::new(200, listing).with("Content-Type", "application/json");
        }
        reply
    });
    let place = Place::new();
    let (notes, index) = (place.path().join("notes"), place.path().join("index"));
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("tap.md"), "The tap drips.").unwrap();
    fs::write(notes.join("roof.md"), "The roof leaks.").unwrap();
    let run_index = |args: &[&str]| place.run(&[&["index"], args, &["--index", arg(&index)]].concat());
    let found = || run_index(&["search", "--json", "tap"]).done().lines().count();

    let added = run_index(&["add", arg(&notes)]);
    assert!(added.stderr.contains(&format!("refrain model pull {NAME}")), "{}", added.stderr);
    assert_eq!(found(), 1);
    let updated = run_index(&["update"]);
    assert!(!updated.stderr.contains("model pull"), "it is said once: {}", updated.stderr);

    let pulled = run(place.pull_named(&hub, NAME, &[]));
    assert!(pulled.stderr.contains("make vectors of notes with it"), "{}", pulled.stderr);
    pulled.done();
    assert_eq!(place.files().iter().filter(|file| file.starts_with("models/")).count(), names.len());
    let updated = run_index(&["update"]);
    assert!(updated.stderr.contains("makes vectors"), "{}", updated.stderr);
    // A vector is similar to every other.
    assert_eq!(found(), 2);
    run_index(&["update", "--embedder", "none"]).done();
    run_index(&["update"]).done();
    assert_eq!(found(), 1, "the choice is remembered");
}

#[test]
fn a_split_model_is_pulled_whole() {
    let place = Place::new();
    let part = |n: usize| format!("BF16/m-BF16-0000{n}-of-00002.gguf");
    let hub = Hub::start(
        Files::from([(part(1), bytes(5000)), (part(2), bytes(6000)), ("m-Q4_0.gguf".to_owned(), bytes(10))]),
        |_, _, good| good,
    );
    let several = run(place.pull(&hub, &[])).refused(3);
    assert!(several.contains("m-Q4_0.gguf (10 B)") && several.contains("BF16"), "{several}");
    let path = run(place.pull_named(&hub, "owner/model-GGUF:bf16", &[])).done();
    assert!(path.trim_end().ends_with("m-BF16-00001-of-00002.gguf"), "{path}");
    assert_eq!(place.files().len(), 2);
    run(place.pull_named(&hub, "owner/model-GGUF:Q4_0", &[])).done();
    let listed = place.run(&["model", "list"]).done();
    assert!(listed.contains(":m-Q4_0.gguf") && listed.contains(":BF16/m-BF16-00001"), "{listed}");
    place.run(&["model", "rm", "owner/model-GGUF:BF16"]).done();
    assert_eq!(place.files(), ["models/owner/model-GGUF/m-Q4_0.gguf"]);
}

#[test]
fn a_connection_that_ends_early_is_resumed() {
    let requests = recovers(|_, n, good| if n < 3 { good.cut(80_000) } else { good });
    assert_eq!(requests.len(), 4);
    assert_eq!(requests[0].header("Range"), None);
    let from: Vec<usize> = requests[1..]
        .iter()
        .map(|request| {
            request
                .header("Range")
                .unwrap()
                .trim_start_matches("bytes=")
                .trim_end_matches('-')
                .parse()
                .unwrap()
        })
        .collect();
    assert!(from.is_sorted() && from.iter().all(|from| *from > 0), "{from:?}");
    assert!(requests[1].header("If-Range").unwrap().starts_with('"'));
    // Without a length, the end of the connection is the end of the answer.
    recovers(|_, n, good| if n == 0 { good.without("Content-Length").cut(90_000) } else { good });
    // Before the first byte, and before the head.
    recovers(|_, n, good| if n == 0 { good.cut(0) } else { good });
}

#[test]
fn a_later_pull_resumes_an_earlier_one() {
    let place = Place::new();
    let hub = failing(|_, n, good| if n == 0 { good.cut(200_000) } else { good });
    let ran = run(place.pull(&hub, &["--attempts", "1"]));
    assert!(ran.code == Some(1) && ran.stderr.contains("resumes"), "{}", ran.stderr);
    let part = place.file("m-Q4_0.gguf.part");
    let n_bytes = fs::metadata(&part).unwrap().len();
    assert!((1..300_000).contains(&n_bytes), "{n_bytes}");
    let listed = place.run(&["model", "list"]).done();
    assert!(listed.contains("unfinished"), "{listed}");
    run(place.pull(&hub, &[])).done();
    let requests = hub.downloads();
    assert_eq!(requests[1].header("Range"), Some(&*format!("bytes={n_bytes}-")));
    assert_eq!(fs::read(place.file("m-Q4_0.gguf")).unwrap(), bytes(300_000));
    assert!(!part.exists());
}

#[test]
fn a_damaged_part_is_discarded_and_the_file_comes_again() {
    let place = Place::new();
    let hub = failing(|_, n, good| if n == 0 { good.cut(200_000) } else { good });
    run(place.pull(&hub, &["--attempts", "1"]));
    let part = place.file("m-Q4_0.gguf.part");
    let mut damaged = fs::read(&part).unwrap();
    damaged[7] ^= 1;
    fs::write(&part, damaged).unwrap();
    let ran = run(place.pull(&hub, &[]));
    assert!(ran.stderr.contains("damaged"), "{}", ran.stderr);
    ran.done();
    assert_eq!(fs::read(place.file("m-Q4_0.gguf")).unwrap(), bytes(300_000));
    // Another process's note of another content.
    let place = Place::new();
    run(place.pull(&failing(|_, _, good| good.cut(100)), &["--attempts", "1"]));
    fs::write(place.file("m-Q4_0.gguf.part.json"), "[".repeat(100_000)).unwrap();
    run(place.pull(&failing(|_, _, good| good), &[])).done();
}

#[test]
fn wrong_bytes_and_lengths_never_get_the_name_of_the_file() {
    let wrong = |_: &Request, _: usize, good: Reply| Reply { body: vec![0; good.body.len()], ..good };
    assert!(fails(1, wrong).contains("hash"));
    let short = |_: &Request, _: usize, good: Reply| good.with("Content-Length", "299999");
    assert!(fails(1, short).contains("299999 bytes"));
    let long = |_: &Request, _: usize, good: Reply| good.with("Content-Length", "300001");
    assert!(fails(1, long).contains("300001 bytes"));
    let endless = |_: &Request, _: usize, good: Reply| {
        Reply { body: vec![7; 400_000], ..good }.without("Content-Length")
    };
    assert!(fails(1, endless).contains("more than 300000 bytes"));
    let encoded = |_: &Request, _: usize, good: Reply| good.with("Content-Encoding", "gzip");
    assert!(fails(1, encoded).contains("gzip"));
    // A range that nobody has asked for.
    let partial = |_: &Request, _: usize, good: Reply| {
        Reply { status: 206, ..good }.with("Content-Range", "bytes 0-299999/300000")
    };
    assert!(fails(1, partial).contains("206"));
}

#[test]
fn answers_to_a_range_are_checked() {
    // Each hub cuts the first answer, and answers the second request wrongly.
    for (range, what) in [
        (Some("bytes 0-299999/300000"), "another range"),
        (Some("bytes 1-/300000"), "no range"),
        (None, "no header"),
    ] {
        let requests = recovers(move |request, n, good| match n {
            0 => good.cut(100_000),
            1 => {
                assert!(request.header("Range").is_some(), "{what}");
                let wrong = Reply { status: 206, ..good }.without("Content-Range");
                range.map_or(wrong.clone(), |range| wrong.with("Content-Range", range))
            }
            _ => good,
        });
        assert_eq!(requests[2].header("Range"), None, "{what}: it starts again");
    }
    // The whole file instead of the range.
    let requests = recovers(|request, n, good| match n {
        0 => good.cut(100_000),
        _ => {
            let whole = Request { headers: Vec::new(), ..request.clone() };
            hub::good(&small(), &whole)
        }
    });
    assert_eq!(requests.len(), 2);
    // Nothing behind the part.
    recovers(|_, n, good| match n {
        0 => good.cut(100_000),
        1 => Reply::new(416, ""),
        _ => good,
    });
}

#[test]
fn a_content_that_changes_between_attempts_is_not_mixed() {
    let old = |good: Reply| Reply { body: vec![9; good.body.len()], ..good }.with("ETag", "\"old\"");
    // The hub sees that `If-Range` names the old content, and sends the new one whole.
    let requests = recovers(move |_, n, good| if n == 0 { old(good).cut(100_000) } else { good });
    assert_eq!(requests[1].header("If-Range"), Some("\"old\""));
    // A hub that ignores `If-Range` is noticed by its ETag.
    let requests = recovers(move |request, n, good| match n {
        0 => old(good).cut(100_000),
        1 => {
            let headers =
                request.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("if-range")).cloned();
            hub::good(&small(), &Request { headers: headers.collect(), ..request.clone() })
        }
        _ => good,
    });
    assert_eq!(requests.len(), 3);
    // Without an ETag nothing but the hash is left.
    let requests = recovers(move |_, n, good| match n {
        0 => old(good).without("ETag").cut(100_000),
        _ => good,
    });
    assert_eq!(requests[1].header("If-Range"), None);
}

#[test]
fn refusals_say_what_to_do() {
    for (status, code, advice) in [
        (401, 3, "HF_TOKEN"),
        (403, 3, "accept its terms"),
        (404, 3, "check the name"),
        (400, 1, "status 400"),
        (501, 1, "status 501"),
    ] {
        let message = fails(code, move |_, _, _| Reply::new(status, "<html>no</html>"));
        assert!(message.contains(advice) && !message.contains("html"), "{message}");
        // The same at the listing.
        let hub = Hub::start(small(), move |_, _, _| Reply::new(status, ""));
        let refused = run(Place::new().pull(&hub, &["--attempts", "1"])).refused(code);
        assert!(refused.contains(advice), "{refused}");
    }
    // A pause that is asked for is kept; one that is too long ends the pull.
    let requests =
        recovers(|_, n, good| if n == 0 { Reply::new(429, "").with("Retry-After", "1") } else { good });
    assert_eq!(requests.len(), 2);
    recovers(|_, n, good| if n == 0 { Reply::new(503, "").with("Retry-After", "soon") } else { good });
    recovers(|_, n, good| if n == 0 { Reply::new(500, "") } else { good });
    let hub = failing(|_, _, _| Reply::new(429, "").with("Retry-After", "86400"));
    let ran = run(Place::new().pull(&hub, &[]));
    assert!(ran.code == Some(1) && ran.stderr.contains("86400 s"), "{}", ran.stderr);
    assert_eq!(hub.downloads().len(), 1);
}

#[test]
fn redirects_are_bounded_and_stay_on_secure_ways() {
    let message = fails(1, |request, _, _| Reply::redirect(&request.path));
    assert!(message.contains("more than 5 times"), "{message}");
    for (location, problem) in [
        ("http://192.0.2.1/model", "without https"),
        ("http://hub.example/model", "without https"),
        ("ftp://127.0.0.1/model", "http or https"),
        ("file:///etc/passwd", "http or https"),
        ("relative", "http or https"),
        ("http://user@127.0.0.1/model", "user"),
        ("", "address"),
    ] {
        let message = fails(1, move |_, _, _| Reply::redirect(location));
        assert!(message.contains(problem), "{location}: {message}");
    }
    let message = fails(1, |_, _, _| Reply::new(302, ""));
    assert!(message.contains("no address"), "{message}");
}

#[test]
fn a_token_goes_to_the_hub_and_nowhere_else() {
    let store = Hub::start(small(), |request, _, _| {
        let path = request.path.strip_prefix("/store").expect("as redirected");
        hub::good(&small(), &Request { path: path.to_owned(), ..request.clone() })
    });
    // Another port and another name of this device are another host.
    for host in ["127.0.0.1", "localhost"] {
        let port = store.port;
        let hub = failing(move |request, _, _| {
            Reply::redirect(&format!("http://{host}:{port}/store{}", request.path))
        });
        let place = Place::new();
        let mut command = place.pull(&hub, &[]);
        command.env("HF_TOKEN", "hf_0123456789secret");
        let ran = run(command);
        assert!(!ran.stderr.contains("hf_0123456789secret"), "{}", ran.stderr);
        ran.done();
        assert!(
            hub.requests()
                .iter()
                .all(|request| request.header("Authorization") == Some("Bearer hf_0123456789secret"))
        );
    }
    assert!(store.requests().iter().all(|request| request.header("Authorization").is_none()));
    assert!(!store.requests().is_empty());
}

#[test]
fn a_token_is_not_sent_on_the_way_back_from_another_host() {
    let place = Place::new();
    let home = std::sync::Arc::new(std::sync::OnceLock::<u16>::new());
    let known = std::sync::Arc::clone(&home);
    let other = Hub::start(small(), move |request, _, _| {
        Reply::redirect(&format!("http://127.0.0.1:{}{}?back", known.get().unwrap(), request.path))
    });
    let port = other.port;
    let hub = failing(move |request, _, _| match request.path.strip_suffix("?back") {
        Some(path) => hub::good(&small(), &Request { path: path.to_owned(), ..request.clone() }),
        None => Reply::redirect(&format!("http://127.0.0.1:{port}{}", request.path)),
    });
    home.set(hub.port).unwrap();
    let mut command = place.pull(&hub, &[]);
    command.env("HF_TOKEN", "hf_0123456789secret");
    run(command).done();
    for request in hub.requests() {
        let is_back = request.path.ends_with("?back");
        assert_eq!(request.header("Authorization").is_none(), is_back, "{}", request.path);
    }
}

#[test]
fn tokens_come_from_the_environment_a_file_or_the_keyring() {
    let asked = |change: &dyn Fn(&mut std::process::Command, &Place)| {
        let (place, hub) = (Place::new(), Hub::start(small(), |_, _, good| good));
        let mut command = place.pull(&hub, &[]);
        change(&mut command, &place);
        let ran = run(command);
        (ran, hub.requests().first().and_then(|request| request.header("Authorization").map(str::to_owned)))
    };
    assert_eq!(asked(&|_, _| {}).1, None);
    let (ran, sent) = asked(&|command, place| {
        let folder = place.path().join(".cache/huggingface");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("token"), "hf_of_file\n").unwrap();
        command.env("USERPROFILE", place.path());
    });
    ran.done();
    assert_eq!(sent.as_deref(), Some("Bearer hf_of_file"));
    let (_, sent) = asked(&|command, place| {
        fs::write(place.path().join("mine"), "hf_of_path").unwrap();
        command.env("HF_TOKEN_PATH", place.path().join("mine"));
    });
    assert_eq!(sent.as_deref(), Some("Bearer hf_of_path"));
    let (ran, sent) = asked(&|command, _| {
        command.env("HF_TOKEN", "two words");
    });
    assert!(sent.is_none() && !ran.refused(2).contains("two words"));
}

#[cfg(target_os = "linux")]
#[test]
fn the_keyring_is_asked_only_if_the_user_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let programs = tempfile::tempdir().unwrap();
    let tool = programs.path().join("secret-tool");
    fs::write(&tool, "#!/bin/sh\n[ \"$*\" = 'lookup service refrain' ] && printf hf_of_keyring\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    for (more, expected) in [(&["--keyring"][..], Some("Bearer hf_of_keyring")), (&[], None)] {
        let (place, hub) = (Place::new(), Hub::start(small(), |_, _, good| good));
        let mut command = place.pull(&hub, more);
        command.env("PATH", format!("{}:/usr/bin:/bin", programs.path().display()));
        run(command).done();
        assert_eq!(hub.requests()[0].header("Authorization"), expected);
    }
    fs::write(&tool, "#!/bin/sh\nexit 1\n").unwrap();
    let (place, hub) = (Place::new(), Hub::start(small(), |_, _, good| good));
    let mut command = place.pull(&hub, &["--keyring"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", programs.path().display()));
    assert!(run(command).refused(1).contains("no entry"));
    assert!(hub.requests().is_empty());
}

#[test]
fn an_answer_without_progress_ends() {
    let drip = fails(1, |_, _, good| good.paced(1, Duration::from_millis(40)));
    assert!(drip.contains("within 5 s"), "{drip}");
    let silent = fails(1, |_, _, good| good.paced(5000, Duration::from_secs(3600)));
    assert!(silent.contains("within 5 s"), "{silent}");
    // Nothing at all, at the listing.
    let hub = Hub::start(small(), |_, _, good| {
        std::thread::sleep(Duration::from_secs(3600));
        good
    });
    let refused = run(Place::new().pull(&hub, &["--attempts", "1,1"])).refused(1);
    assert!(refused.contains("within 1 s"), "{refused}");
}

#[test]
fn answers_are_bounded() {
    let refused = |answer: fn(Reply) -> Reply| {
        let hub = Hub::start(small(), move |_, _, good| answer(good));
        run(Place::new().pull(&hub, &["--attempts", "1"])).refused(1)
    };
    let headers =
        refused(|good| (0..2000).fold(good, |good, n| good.with(&format!("X-{n}"), &"y".repeat(100))));
    assert!(headers.contains("owner/model-GGUF"), "{headers}");
    let long = refused(|_| Reply::new(200, format!("[{}]", "0,".repeat(9 << 20))).without("Content-Length"));
    assert!(long.contains("more than 16777216 bytes"), "{long}");
    for start in ["", "{\"x\": ", "{\"siblings\": [{\"lfs\": "] {
        let body = format!("{start}{}", "[".repeat(1 << 20));
        let hub = Hub::start(small(), move |_, _, _| Reply::new(200, body.as_str()));
        let nested = run(Place::new().pull(&hub, &["--attempts", "1"])).refused(1);
        assert!(nested.contains("not as expected"), "{nested}");
    }
    let encoded = refused(|good| good.with("Content-Encoding", "gzip"));
    assert!(encoded.contains("gzip"), "{encoded}");
    for body in ["", "{}", "null", "{\"sha\": \"../..\", \"siblings\": []}", "{\"sha\": 1}", "\u{7f}ELF"] {
        let hub = Hub::start(small(), move |_, _, _| Reply::new(200, body));
        let line = run(Place::new().pull(&hub, &["--attempts", "1"])).refused(1);
        assert!(line.contains("not as expected"), "{body}: {line}");
    }
    // No HTTP at all.
    let hub = Hub::start(small(), |_, _, good| Reply {
        headers: vec![("x\r\n\0".to_owned(), "y".to_owned())],
        ..good
    });
    run(Place::new().pull(&hub, &["--attempts", "1"])).refused(1);
}

#[test]
fn names_that_climb_are_refused() {
    for path in [
        "../../../evil.gguf",
        "/tmp/evil.gguf",
        "a/../../evil.gguf",
        "..\\evil.gguf",
        "C:\\evil.gguf",
        "nul.gguf",
        ".evil.gguf",
        "a\u{202e}b.gguf",
        "x\n.gguf",
    ] {
        let (place, hub) =
            (Place::new(), Hub::start(Files::from([(path.to_owned(), bytes(10))]), |_, _, good| good));
        let refused = run(place.pull(&hub, &[])).refused(3);
        assert!(refused.contains("cannot be stored"), "{path}: {refused}");
        assert!(place.files().is_empty() && hub.downloads().is_empty(), "{path}");
    }
    for name in [
        "../x",
        "owner",
        "owner/..",
        "owner/x:../y z",
        "/etc/passwd",
        "owner/model@../x",
        "https://hub.example/owner/x",
    ] {
        let (place, hub) = (Place::new(), Hub::start(small(), |_, _, good| good));
        run(place.pull_named(&hub, name, &[])).refused(2);
        assert!(hub.requests().is_empty());
    }
    let place = Place::new();
    let mut command = place.command(&["model", "pull", REPO]);
    command.env("HF_ENDPOINT", "http://hub.example");
    let refused = run(command).refused(2);
    assert!(refused.contains("https"), "{refused}");
}

#[test]
fn a_file_that_was_not_pulled_is_never_replaced() {
    let (place, hub) = (Place::new(), Hub::start(small(), |_, _, good| good));
    let mine = place.file("m-Q4_0.gguf");
    fs::create_dir_all(mine.parent().unwrap()).unwrap();
    fs::write(&mine, "mine").unwrap();
    assert!(run(place.pull(&hub, &[])).refused(3).contains("was not pulled"));
    assert_eq!(fs::read(&mine).unwrap(), b"mine");
    assert!(place.run(&["model", "rm", "owner/other"]).refused(3).contains("no model"));
    let foreign = place.models().join("own").join("work");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("own.gguf"), "mine").unwrap();
    assert!(place.run(&["model", "rm", "own/work"]).refused(3).contains("was not pulled"));
    assert_eq!(fs::read(foreign.join("own.gguf")).unwrap(), b"mine");
    place.run(&["model", "rm", "../own"]).refused(2);
    // The same content is adopted.
    fs::write(&mine, bytes(300_000)).unwrap();
    run(place.pull(&hub, &[])).done();
    assert!(hub.downloads().is_empty());
}

#[test]
fn a_new_revision_replaces_the_old_file_when_it_is_whole() {
    let place = Place::new();
    run(place.pull(&failing(|_, _, good| good), &[])).done();
    let new = bytes(200_000).into_iter().rev().collect::<Vec<_>>();
    let theirs = files([("m-Q4_0.gguf", new.clone())]);
    let hub = Hub::start(
        theirs,
        |request, n, good| if n == 0 && !request.is_listing() { good.cut(1000) } else { good },
    );
    let ran = run(place.pull(&hub, &["--attempts", "1"]));
    assert_eq!(ran.code, Some(1));
    assert_eq!(fs::read(place.file("m-Q4_0.gguf")).unwrap(), bytes(300_000), "the old one, until then");
    run(place.pull(&hub, &[])).done();
    assert_eq!(fs::read(place.file("m-Q4_0.gguf")).unwrap(), new);
}

#[test]
fn a_disk_without_room_is_noticed_before_and_during_the_download() {
    let listing = hub::listing(&small()).replace("\"size\":300000", &format!("\"size\":{}", 1u64 << 60));
    let hub = Hub::start(small(), move |_, _, _| Reply::new(200, listing.clone()));
    if cfg!(unix) {
        let refused = run(Place::new().pull(&hub, &[])).refused(1);
        assert!(refused.contains("are free"), "{refused}");
        assert!(hub.downloads().is_empty());
    }
}

#[cfg(unix)]
#[test]
fn a_write_that_fails_keeps_the_part() {
    let (place, hub) = (Place::new(), failing(|_, _, good| good));
    let program = place.pull(&hub, &["--attempts", "1"]);
    // Files of at most 100 blocks of 512 or 1024 bytes, and no signal about it.
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\""])
        .arg(program.get_program())
        .args(program.get_args());
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.env("REFRAIN_MODELS", place.models());
    shell
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let ran = run(shell);
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot write"), "{}", ran.stderr);
    assert!(fs::metadata(place.file("m-Q4_0.gguf.part")).unwrap().len() > 0);
    let command = place.pull(&hub, &[]);
    run(command).done();
    assert!(hub.downloads().last().unwrap().header("Range").is_some());
}

#[test]
fn two_pulls_at_once_download_once() {
    let place = Place::new();
    let hub = failing(|_, _, good| good.paced(20_000, Duration::from_millis(50)));
    let first = place.pull(&hub, &[]).spawn().unwrap();
    while hub.downloads().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = run(place.pull(&hub, &[]));
    assert!(second.stderr.contains("waiting"), "{}", second.stderr);
    second.done();
    finish(first).done();
    assert_eq!(hub.downloads().len(), 1);
    assert_eq!(fs::read(place.file("m-Q4_0.gguf")).unwrap(), bytes(300_000));
}

#[cfg(unix)]
#[test]
fn a_killed_or_interrupted_pull_is_resumed() {
    for (signal, code) in [("-KILL", None), ("-INT", Some(130))] {
        let place = Place::new();
        let hub =
            failing(|_, n, good| if n == 0 { good.paced(50_000, Duration::from_millis(200)) } else { good });
        let child = place.pull(&hub, &[]).spawn().unwrap();
        let part = place.file("m-Q4_0.gguf.part");
        while !fs::metadata(&part).is_ok_and(|found| found.len() > 0) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let killed =
            std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let ran = finish(child);
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(!place.file("m-Q4_0.gguf").exists());
        run(place.pull(&hub, &[])).done();
        assert_eq!(fs::read(place.file("m-Q4_0.gguf")).unwrap(), bytes(300_000));
        let requests = hub.downloads();
        assert!(requests[1].header("Range").is_some_and(|range| range != "bytes=0-"), "{signal}");
    }
}

/// A hub with HTTPS and the certificate of `localhost`.
fn secure() -> Hub {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let certificate = CertificateDer::from_pem_slice(include_bytes!("../support/tls/localhost.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../support/tls/localhost.key")).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = std::sync::Arc::new(config);
    Hub::on(
        "127.0.0.1:0",
        small(),
        |_, _, good| good,
        move |stream| {
            let connection = rustls::ServerConnection::new(std::sync::Arc::clone(&config)).unwrap();
            Box::new(rustls::StreamOwned::new(connection, stream))
        },
    )
}

// Elsewhere the certificates are those of the system, which a test cannot change.
#[cfg(target_os = "linux")]
#[test]
fn a_hub_has_a_certificate_that_this_system_trusts() {
    let hub = secure();
    let authority = support::repository("crates/cli/tests/support/tls/authority.pem");
    let pull = |host: &str, trusted: &str| {
        let place = Place::new();
        let url = format!("https://{host}:{}", hub.port);
        let mut command = place.command(&["model", "pull", REPO, "--attempts", "1"]);
        command
            .env("HF_ENDPOINT", &url)
            .env("SSL_CERT_FILE", trusted)
            .env_remove("SSL_CERT_DIR")
            .env("HF_TOKEN", "hf_0123456789secret");
        let ran = run(command);
        assert!(ran.code != Some(0) || place.file("m-Q4_0.gguf").exists());
        ran
    };
    pull("localhost", arg(&authority)).done();
    assert!(hub.downloads().iter().all(|request| request.header("Authorization").is_some()));
    let n_before = hub.requests().len();
    // A name that the certificate lacks, and an authority that nobody trusts.
    let refused = pull("127.0.0.1", arg(&authority)).refused(1);
    assert!(refused.contains("certificate"), "{refused}");
    let other = support::repository("crates/cli/tests/support/tls/localhost.pem");
    let refused = pull("localhost", arg(&other)).refused(1);
    assert!(refused.contains("certificate"), "{refused}");
    let refused = pull("localhost", "/nowhere").refused(1);
    assert!(refused.contains("SSL_CERT_FILE"), "{refused}");
    assert_eq!(hub.requests().len(), n_before, "nothing was sent");
}

#[test]
fn models_of_other_tools_are_read_in_place() {
    let home = tempfile::tempdir().unwrap();
    let studio = home.path().join(".lmstudio/models/org/Tiny-GGUF");
    std::fs::create_dir_all(&studio).unwrap();
    fs::copy(model(), studio.join("tiny.gguf")).unwrap();
    let hash = "ab".repeat(32);
    let ollama = home.path().join(".ollama/models");
    let manifest = ollama.join("manifests/registry.ollama.ai/library/tiny/1m");
    std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    std::fs::create_dir_all(ollama.join("blobs")).unwrap();
    let blob = ollama.join("blobs").join(format!("sha256-{hash}"));
    std::fs::copy(model(), &blob).unwrap();
    let size = std::fs::metadata(&blob).unwrap().len();
    let layer = format!(
        r#"{{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{hash}", "size": {size}}}"#
    );
    std::fs::write(&manifest, format!(r#"{{"layers": [{layer}]}}"#)).unwrap();
    let ran = |args: &[&str]| {
        let output = support::command(args).env("HOME", home.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (_, list, _) = ran(&["model", "list"]);
    assert!(list.contains("org/Tiny-GGUF") && list.contains("lm-studio"), "{list}");
    assert!(list.contains("tiny:1m") && list.contains("ollama"), "{list}");
    let (_, json, _) = ran(&["model", "list", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["others"][1]["name"], "tiny:1m", "{json}");
    for name in ["org/Tiny-GGUF", "tiny:1m"] {
        let (code, text, errors) = ran(&[
            "run",
            "--model",
            name,
            "--store",
            "none",
            "--stats",
            "off",
            "--max-tokens",
            "4",
            "Hello.",
        ]);
        assert_eq!(code, Some(0), "{name}: {text}{errors}");
    }
    std::fs::write(&blob, "cut").unwrap();
    let (code, _, errors) = ran(&["model", "inspect", "tiny:1m"]);
    assert!(code == Some(3) && errors.contains("3 bytes, and its manifest says"), "{errors}");
    let (_, list, errors) = ran(&["model", "list"]);
    assert!(!list.contains("tiny:1m") && errors.contains("its manifest says"), "{list}{errors}");
}

#[test]
fn models_are_suggested_with_estimates() {
    let text = support::refrain(&["model", "suggest"]).done();
    assert!(
        text.contains("Qwen/Qwen3-4B-GGUF") && text.contains("Apache-2.0") && text.contains("to download"),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&support::refrain(&["model", "suggest", "--json"]).done()).unwrap();
    let first = &json["models"][0];
    assert!(first["memory_bytes"].as_u64() > first["bytes"].as_u64() && first["is_here"] == false, "{json}");
    assert!(json["embedder"]["licence"].is_string());
}
