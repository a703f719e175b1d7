//! The page's files and endpoints. `crates/serve/page/tests` runs the page itself in a browser.

use refrain_assistant::{AnswerRequest, JobOptions};
use refrain_serve::ServeOptions;
use serde_json::{Value, json};

use crate::support::{self, Place, Reply, changed};

const QUESTION: &str = "Which company takes care of the roof repair?";
const TOKEN: &str = "a-token-of-at-least-16-bytes";

/// The events of a stream: names and data.
fn events(reply: &Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let blocks = reply.body.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
    let event = |block: &str| {
        let (name, data) = block.split_once('\n').expect("two lines");
        let data = data.strip_prefix("data: ").expect("data");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        (name, serde_json::from_str(data).expect("JSON"))
    };
    blocks.map(event).collect()
}

/// The result of a stream that ends well, and the texts of its pieces together.
fn done(reply: &Reply) -> (Value, String) {
    let mut all = events(reply);
    let (name, result) = all.pop().expect("an event");
    assert_eq!(name, "done", "{result}");
    let texts = all.iter().filter(|(name, _)| name == "text");
    let text: String = texts.map(|(_, piece)| piece["text"].as_str().expect("text")).collect();
    (result, text)
}

/// A part of a text, in UTF-16 code units.
fn units(text: &str, range: &Value) -> String {
    let all: Vec<u16> = text.encode_utf16().collect();
    let at = |index: usize| range[index].as_u64().expect("a number") as usize;
    String::from_utf16(&all[at(0)..at(1)]).expect("whole characters")
}

#[test]
fn an_answer_is_that_of_the_assistant_with_drafts_and_without() {
    let place = Place::new();
    let (server, assistant) = place.server(ServeOptions::default());
    let own =
        assistant.answer(AnswerRequest::new(QUESTION), changed(JobOptions::default(), |it| it.keep = false));
    let own = own.unwrap().run().unwrap();
    let ask =
        |more: Value| done(&server.post("/page/ask", &support::with(&json!({ "question": QUESTION }), more)));
    let (drafted, streamed) = ask(json!({}));
    assert_eq!((drafted["text"].as_str(), streamed.as_str()), (Some(own.text.as_str()), own.text.as_str()));
    // Its prompt is kept, because two requests had it.
    ask(json!({}));
    let (plain, streamed) = ask(json!({ "drafts": false, "keep": false }));
    assert_eq!((&plain["text"], streamed), (&drafted["text"], own.text.clone()));
    assert_eq!(plain["stats"]["tokens"], plain["stats"]["steps"]);
    assert!(drafted["stats"]["steps"].as_u64() < drafted["stats"]["tokens"].as_u64());
    assert!(plain["stats"]["cached_tokens"].as_u64() > Some(0), "the prompt is kept by the second request");
    // With one seed, drawn texts are equal too.
    let drawn = json!({ "temperature": 1.5, "seed": 7, "keep": false });
    let (first, _) = ask(drawn.clone());
    let (second, _) = ask(support::with(&drawn, json!({ "drafts": false })));
    assert_eq!(first["text"], second["text"]);
    let (cut, _) = ask(json!({ "max_tokens": 2 }));
    assert_eq!((&cut["is_cut"], &cut["stats"]["tokens"]), (&json!(true), &json!(2)));
}

#[test]
fn a_copied_span_leads_to_its_source_by_an_id() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    let (answer, _) = done(&server.post("/page/ask", &json!({ "question": QUESTION })));
    let span = &answer["copied"][0];
    let passage = &answer["passages"][span["passage"].as_u64().expect("an index") as usize];
    assert_eq!(passage["file"], "notes/repair-roof.md");
    assert!(passage["locator"].as_str().is_some_and(|locator| locator.starts_with("line ")), "{passage}");
    let id = passage["id"].as_str().unwrap();
    let source = server.get(&format!("/page/source/{id}")).json();
    let section = &source["sections"][source["section"].as_u64().unwrap() as usize];
    let copied = units(answer["text"].as_str().unwrap(), &span["output"]);
    assert_eq!(units(section["text"].as_str().unwrap(), &span["place"]), copied);
    assert_eq!((&source["is_current"], &source["file"]), (&json!(true), &json!("notes/repair-roof.md")));
    assert_eq!(source["locator"], passage["locator"]);
    // The same passage has the same id; a path and an unknown id open nothing.
    let (again, _) = done(&server.post("/page/ask", &json!({ "question": QUESTION })));
    assert_eq!(again["passages"][0]["id"], answer["passages"][0]["id"]);
    let note = place.0.path().join("notes/repair-roof.md");
    let encoded = note.display().to_string().replace('/', "%2F");
    for id in ["src_000000000000000000000000", "..%2F..%2Fetc%2Fpasswd", &encoded, "%00"] {
        assert_eq!(server.get(&format!("/page/source/{id}")).status, 404, "{id}");
    }
    assert!(!server.get("/page/history").body.contains(&place.0.path().display().to_string()));
}

#[test]
fn the_changes_of_an_edit_give_its_text() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    let old = "  Dear Ada,\n\nthe plumber 🙂 comes on Friday at noon.\n";
    let edit = json!({ "text": old, "instruction": "Change Friday to Monday." });
    let reply = server.post("/page/edit", &edit);
    let (result, streamed) = done(&reply);
    assert_eq!(result["text"].as_str(), Some(streamed.as_str()));
    let old: Vec<u16> = old.encode_utf16().collect();
    let (mut at, mut new) = (0, Vec::new());
    for (_, change) in events(&reply).iter().filter(|(name, _)| name == "change") {
        let n = change["n"].as_u64().unwrap_or_default() as usize;
        match change["kind"].as_str().unwrap() {
            "keep" => new.extend_from_slice(&old[at..at + n]),
            "insert" => new.extend(change["text"].as_str().unwrap().encode_utf16()),
            kind => assert_eq!(kind, "delete"),
        }
        at += n;
    }
    assert_eq!((String::from_utf16(&new).unwrap(), at), (streamed, old.len()));
}

#[test]
fn forgetting_empties_the_history_and_the_store() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    let ask = |question: &str| done(&server.post("/page/ask", &json!({ "question": question }))).0;
    let entries = || server.get("/page/history").json()["entries"].as_array().unwrap().clone();
    let roof = ask(QUESTION);
    ask("How many guests are invited to Stiafin Nornini's party?");
    assert_eq!(entries().iter().map(|entry| &entry["is_kept"]).collect::<Vec<_>>(), [true, true]);
    let id = roof["passages"][0]["id"].as_str().unwrap();
    let forgotten = server.answer("/page/forget", &json!({ "what": "note", "id": id }));
    assert!(forgotten["n_answers"].as_u64() >= Some(1), "{forgotten}");
    assert_eq!(server.get(&format!("/page/source/{id}")).status, 404);
    assert!(!entries().iter().any(|entry| entry["request"] == QUESTION));
    // No passage of the note is left to answer from.
    let refused = ask("fuse");
    assert_eq!((&refused["text"], &refused["is_not_in_notes"]), (&json!("Not in your notes."), &json!(true)));
    assert_eq!((&refused["passages"], &refused["searched"]), (&json!([]), &json!("fuse")));
    ask("Who helps with the shopping list of Toabran Kresfield?");
    let at_ms = entries()[0]["at_ms"].as_u64().unwrap() + 1;
    let forgotten = server.answer("/page/forget", &json!({ "what": "before", "at_ms": at_ms }));
    assert!(forgotten["n_answers"].as_u64() >= Some(1), "{forgotten}");
    assert_eq!(entries(), [] as [Value; 0]);
    ask("Who helps with the shopping list of Toabran Kresfield?");
    let kept = server.answer("/v1/responses", &json!({ "input": "Hello.", "max_output_tokens": 2 }));
    let kept = format!("/v1/responses/{}", kept["id"].as_str().unwrap());
    assert_eq!(server.get(&kept).status, 200);
    server.answer("/page/forget", &json!({ "what": "everything" }));
    assert_eq!(server.get(&kept).status, 404, "responses are forgotten too");
    assert_eq!(entries(), [] as [Value; 0]);
    assert_eq!(server.get("/page/status").json()["notes"]["n_passages"], 0);
}

#[test]
fn requests_are_checked_with_the_names_of_their_fields() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    for (path, body, param) in [
        ("/page/ask", json!({}), "question"),
        ("/page/ask", json!({ "question": "  " }), "question"),
        ("/page/ask", json!({ "question": "a", "path": "/etc" }), "path"),
        ("/page/ask", json!({ "question": "a", "earlier": vec!["b"; 17] }), "earlier"),
        ("/page/ask", json!({ "question": "a", "earlier": ["b", ""] }), "earlier[1]"),
        ("/page/ask", json!({ "question": "a", "max_tokens": 0 }), "max_tokens"),
        ("/page/ask", json!({ "question": "a", "temperature": 3 }), "temperature"),
        ("/page/ask", json!({ "question": "a", "drafts": 1 }), "drafts"),
        ("/page/ask", json!({ "question": "a".repeat(40 << 10) }), "question"),
        ("/page/edit", json!({ "text": "a" }), "instruction"),
        ("/page/forget", json!({}), "what"),
        ("/page/forget", json!({ "what": "all" }), "what"),
        ("/page/forget", json!({ "what": "note" }), "id"),
        ("/page/forget", json!({ "what": "before" }), "at_ms"),
        ("/page/forget", json!({ "what": "before", "at_ms": -1 }), "at_ms"),
    ] {
        let reply = server.post(path, &body);
        assert_eq!((reply.status, reply.error()["param"].as_str()), (400, Some(param)), "{path}");
    }
    assert_eq!(server.request("POST", "/page/ask", &[("Content-Type", "text/plain")], "{}").status, 415);
    assert_eq!(server.get("/page/ask").status, 405);
    assert_eq!(server.post("/page/forget", &json!({ "what": "note", "id": "src_1" })).status, 404);
}

#[test]
fn errors_and_metrics_quote_nothing() {
    const CANARY: &str = "zq7canary";
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    for (path, body) in [
        ("/page/ask", json!({ "question": CANARY })),
        ("/page/ask", json!({ "question": format!("roof {}", CANARY.repeat(3000)) })),
        ("/page/ask", json!({ "question": [CANARY] })),
        ("/page/edit", json!({ "text": CANARY.repeat(40_000), "instruction": CANARY })),
        ("/page/edit", json!({ "text": "a", "instruction": "b", CANARY: " " })),
        ("/page/forget", json!({ "what": CANARY })),
        ("/page/forget", json!({ "what": "note", "id": CANARY })),
    ] {
        let reply = server.post(path, &body);
        let is_field = reply.status == 400 && reply.error()["param"] == CANARY;
        // An answer shows the words that the page itself has sent.
        let body = reply.body.replace(&format!("\"searched\":\"{CANARY}\""), "");
        assert!(is_field || !body.contains(CANARY), "{path}: {}", reply.body);
    }
    let encoded = format!("/page/source/{CANARY}");
    assert!(!server.get(&encoded).body.contains(CANARY) && !server.get("/metrics").body.contains(CANARY));
}

#[test]
fn files_need_no_token_and_endpoints_do() {
    let place = Place::new();
    let (server, _) = place.server(changed(ServeOptions::default(), |it| it.token = Some(TOKEN.to_owned())));
    for path in ["/", "/page/page.js", "/page/page.css", "/page/icon.svg"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 200, "{path}");
        for (name, part) in [
            ("content-security-policy", "frame-ancestors 'none'"),
            ("content-security-policy", "default-src 'none'"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert!(reply.headers[name].contains(part), "{path}: {name}");
        }
    }
    let bearer = format!("Bearer {TOKEN}");
    for (method, path) in [
        ("GET", "/page/status"),
        ("GET", "/page/history"),
        ("GET", "/page/source/src_1"),
        ("POST", "/page/ask"),
        ("POST", "/page/edit"),
        ("POST", "/page/forget"),
        ("GET", "/page/"),
        ("GET", "//"),
        ("GET", "/page/page.js/"),
    ] {
        assert_eq!(server.request(method, path, &[], "").status, 401, "{path}");
    }
    assert_eq!(server.request("GET", "/page/status", &[("Authorization", &bearer)], "").status, 200);
}

#[test]
fn pages_of_other_origins_use_the_api_alone() {
    let place = Place::new();
    let mut options = ServeOptions::default();
    options.origins = vec!["https://chat.example".to_owned()];
    let (server, _) = place.server(options);
    let own = format!("http://localhost:{}", server.address.port());
    for (origin, api, page) in [
        ("https://chat.example", 200, 403),
        (own.as_str(), 200, 200),
        ("https://evil.example", 403, 403),
        ("null", 403, 403),
    ] {
        let status = |path: &str| server.request("GET", path, &[("Origin", origin)], "").status;
        assert_eq!((status("/v1/models"), status("/page/status")), (api, page), "{origin}");
    }
    assert_eq!(server.request("GET", "/", &[("Host", "evil.example")], "").status, 403);
    // A page of another site that has no `Origin`, such as an image's.
    let site = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")];
    assert_eq!(server.request("GET", "/page/history", &site, "").status, 403);
}

#[test]
fn a_page_that_goes_away_stops_its_job() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    for _ in 0..20 {
        drop(
            server
                .begin("/page/ask", &json!({ "question": QUESTION, "max_tokens": 400, "temperature": 2.0 })),
        );
    }
    server.wait(|server| {
        server.metric("refrain_requests_running") == 0.0 && server.metric("refrain_requests_waiting") == 0.0
    });
    let (answer, _) = done(&server.post("/page/ask", &json!({ "question": QUESTION })));
    assert!(answer["text"].as_str().unwrap().contains("Eladus Works"));
}
