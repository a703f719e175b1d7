//! The Model Context Protocol over HTTP: sessions, tools, resources, progress, cancellation, refusals.

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use refrain::CancelToken;
use refrain_assistant::{
    AnswerRequest, Assistant, AssistantOptions, Gate, JobOptions, Priority, SummarizeRequest,
};
use refrain_index::Search;
use refrain_index::notes::{NotesOptions, NotesWriter};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions, Server};
use serde_json::{Value, json};

use crate::support::{MODEL, Place, Reply, Running, changed, engine, with};

const QUESTION: &str = "Which company takes care of the roof repair?";
const TOKEN: &str = "a-token-of-at-least-16-bytes";
const VERSION: &str = "2025-11-25";
const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
const JSON: (&str, &str) = ("Content-Type", "application/json");

/// A client with a session.
struct Client<'a> {
    server: &'a Running,
    session: String,
    n_requests: Cell<u64>,
}

impl<'a> Client<'a> {
    fn new(server: &'a Running) -> Self {
        let reply = server.request("POST", "/mcp", &[ACCEPT, JSON], &initialize(VERSION).to_string());
        let session = reply.headers.get("mcp-session-id").unwrap_or_else(|| panic!("{reply:?}")).clone();
        let client = Self { server, session, n_requests: Cell::new(0) };
        assert_eq!(messages(&reply)[0]["result"]["protocolVersion"], VERSION);
        client.notify("notifications/initialized", json!({}));
        client
    }

    fn headers(&self) -> [(&str, &str); 4] {
        [ACCEPT, JSON, ("Mcp-Session-Id", &self.session), ("MCP-Protocol-Version", VERSION)]
    }

    fn request(&self, method: &str, params: Value) -> Value {
        self.n_requests.set(self.n_requests.get() + 1);
        json!({ "jsonrpc": "2.0", "id": self.n_requests.get(), "method": method, "params": params })
    }

    fn notify(&self, method: &str, params: Value) {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string();
        assert_eq!(self.server.request("POST", "/mcp", &self.headers(), &body).status, 202);
    }

    /// All messages up to the response.
    fn messages(&self, method: &str, params: Value) -> Vec<Value> {
        let body = self.request(method, params).to_string();
        let all = messages(&self.server.request("POST", "/mcp", &self.headers(), &body));
        assert_eq!(all.last().expect("a response")["id"], self.n_requests.get());
        all
    }

    fn result(&self, method: &str, params: Value) -> Value {
        let response = self.messages(method, params).pop().expect("a response");
        assert!(response["error"].is_null(), "{response}");
        response["result"].clone()
    }

    fn error(&self, method: &str, params: Value) -> Value {
        let response = self.messages(method, params).pop().expect("a response");
        assert!(response["error"].is_object(), "{response}");
        response["error"].clone()
    }

    /// The structured content of a call that succeeds.
    fn call(&self, name: &str, arguments: Value) -> Value {
        let result = self.result("tools/call", json!({ "name": name, "arguments": arguments }));
        assert_ne!(result["isError"], true, "{result}");
        assert!(result["content"][0]["text"].is_string(), "{result}");
        result["structuredContent"].clone()
    }

    /// The text of a call whose work fails.
    fn failure(&self, name: &str, arguments: Value) -> String {
        let result = self.result("tools/call", json!({ "name": name, "arguments": arguments }));
        assert_eq!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// Starts a request and leaves its response unread.
    fn begin(&self, method: &str, params: Value) -> TcpStream {
        let body = self.request(method, params).to_string();
        self.server.begin_with("POST", "/mcp", &self.headers(), &body)
    }

    /// All notes, page by page.
    fn resources(&self) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), json!({}));
        loop {
            let page = self.result("resources/list", cursor);
            all.extend(page["resources"].as_array().expect("a list").iter().cloned());
            match &page["nextCursor"] {
                Value::Null => return all,
                next => cursor = json!({ "cursor": next }),
            }
        }
    }
}

fn initialize(version: &str) -> Value {
    let client = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client });
    json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params })
}

/// The messages of a response: one as JSON, or those of a stream.
fn messages(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    if reply.headers["content-type"].starts_with("application/json") {
        return vec![reply.json()];
    }
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    data.filter(|data| !data.is_empty()).map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

fn spec(assistant: Assistant) -> ModelSpec {
    ModelSpec::new(MODEL, move || {
        Ok(changed(Loaded::new(engine()), |it| it.assistant = Some(assistant.clone())))
    })
}

/// A server over the sample notes, its assistant, and the gate of both.
fn gated(place: &Place, limits: Limits) -> (Running, Assistant, Arc<Gate>) {
    let gate = Arc::<Gate>::default();
    let assistant = place.assistant(Arc::clone(&gate), AssistantOptions::default());
    let models = Models::new([spec(assistant.clone())]).expect("one name").with_gate(Arc::clone(&gate));
    (Running::with_models(ServeOptions::default(), limits, models), assistant, gate)
}

fn cut(text: &Value, range: &Value) -> String {
    let at = |index: usize| range[index].as_u64().expect("a number") as usize;
    text.as_str().expect("a text")[at(0)..at(1)].to_owned()
}

#[test]
fn a_session_begins_lists_the_tools_and_ends() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    // An unknown version is answered with one that the server has.
    let reply = server.request("POST", "/mcp", &[ACCEPT, JSON], &initialize("1999-01-01").to_string());
    assert!(
        messages(&reply)[0]["result"]["protocolVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with("20"))
    );
    let client = Client::new(&server);
    let first = messages(&server.request("POST", "/mcp", &[ACCEPT, JSON], &initialize(VERSION).to_string()))
        .remove(0);
    assert_eq!(first["result"]["serverInfo"]["name"], "refrain");
    let capabilities = first["result"]["capabilities"].as_object().expect("an object");
    assert_eq!(capabilities.keys().collect::<Vec<_>>(), ["resources", "tools"]);
    let tools = client.result("tools/list", json!({}));
    let names: Vec<_> =
        tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["search_notes", "answer_from_notes", "summarize"]);
    for tool in tools["tools"].as_array().unwrap() {
        assert!(
            tool["inputSchema"].is_object()
                && tool["outputSchema"].is_object()
                && tool["annotations"].is_object()
        );
    }
    assert_eq!(client.error("tools/list", json!({ "cursor": "x" }))["code"], -32602);
    assert_eq!(client.error("prompts/list", json!({}))["code"], -32601);
    assert_eq!(client.result("ping", json!({})), json!({}));

    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
    let status = |headers: &[(&str, &str)]| server.request("POST", "/mcp", headers, &list).status;
    assert_eq!(status(&[ACCEPT, JSON]), 400, "no session");
    assert_eq!(status(&[ACCEPT, JSON, ("Mcp-Session-Id", "other")]), 404);
    assert_eq!(server.request("DELETE", "/mcp", &client.headers(), "").status, 204);
    assert_eq!(status(&client.headers()), 404);
}

#[test]
fn a_search_finds_what_the_assistant_finds_and_its_notes_are_resources() {
    let place = Place::new();
    let (server, assistant) = place.server(ServeOptions::default());
    let client = Client::new(&server);
    let own = assistant.search_notes(Search::new(QUESTION, 3)).unwrap();
    let found = client.call("search_notes", json!({ "query": QUESTION, "limit": 3 }));
    let passages = found["passages"].as_array().unwrap();
    assert_eq!(passages.len(), 3);
    for (passage, own) in passages.iter().zip(&own) {
        assert_eq!(passage["text"], own.passage.text);
        assert!(passage["is_verbatim"].as_bool().unwrap());
        let file = fs::read_to_string(&own.passage.path).unwrap();
        assert_eq!(cut(&json!(file), &passage["note_bytes"]), own.passage.text);
        let line = file[..own.passage.place.start as usize].matches('\n').count() + 1;
        assert_eq!(passage["locator"], format!("line {line}"));
        for word in passage["matched"].as_array().unwrap() {
            assert!(cut(&passage["text"], word).chars().all(char::is_alphanumeric), "{passage}");
        }
        let read = client.result("resources/read", json!({ "uri": passage["uri"] }));
        assert_eq!(read["contents"][0]["uri"], passage["uri"]);
        assert!(read["contents"][0]["text"].as_str().unwrap().contains(own.passage.text.trim()), "{read}");
    }
    assert_eq!(passages[0]["name"], "notes/repair-roof.md");
    // The text is for models, with links to the notes.
    let result =
        client.result("tools/call", json!({ "name": "search_notes", "arguments": { "query": QUESTION } }));
    assert!(result["content"][0]["text"].as_str().unwrap().contains(&own[0].passage.text));
    assert_eq!(result["content"][1]["type"], "resource_link");
    assert_eq!(result["content"][1]["uri"], passages[0]["uri"]);

    let n_found = |more: Value| {
        let found = client.call("search_notes", with(&json!({ "query": QUESTION, "limit": 50 }), more));
        found["passages"].as_array().unwrap().len()
    };
    let n_all = n_found(json!({}));
    assert!(n_all > 3);
    assert_eq!(n_found(json!({ "folders": ["notes/"] })), n_all);
    assert_eq!(n_found(json!({ "folders": ["notes/repair-roof.md"] })), 1);
    assert_eq!(n_found(json!({ "kinds": ["mail"] })), 0);
    assert_eq!(n_found(json!({ "kinds": ["mail", "note"] })), n_all);
    assert_eq!(n_found(json!({ "tags": ["none-has-this"] })), 0);
    assert_eq!(n_found(json!({ "until": "1970-01-02" })) + n_found(json!({ "from": "1970-01-03" })), n_all);
    for folder in ["..", "/etc", "notes/../..", &place.0.path().display().to_string()] {
        let why = client.failure("search_notes", json!({ "query": QUESTION, "folders": [folder] }));
        assert!(why.contains("no such folder"), "{why}");
    }
}

#[test]
fn all_notes_are_listed_in_pages_and_no_uri_reads_anything_else() {
    let place = Place::new();
    let more = place.0.path().join("notes/more");
    fs::create_dir(&more).unwrap();
    for n in 0..230 {
        fs::write(more.join(format!("n{n}.md")), format!("# Number {n}\n\nThe number is {n}.")).unwrap();
    }
    // Not in the index.
    fs::write(more.join("secret.bin"), "secret").unwrap();
    let mut writer = NotesWriter::open(&place.0.path().join("index"), NotesOptions::default()).unwrap();
    writer.update(&mut |_, _| ControlFlow::Continue(())).unwrap();
    drop(writer);
    let (server, assistant) = place.server(ServeOptions::default());
    let client = Client::new(&server);
    let all = client.resources();
    let mut names: Vec<&str> = all.iter().map(|note| note["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted());
    names.dedup();
    assert_eq!(names.len(), assistant.note_files().unwrap().len());
    assert_eq!(names.len(), 230 + fs::read_dir(place.0.path().join("notes")).unwrap().count() - 1);
    assert!(names.contains(&"notes/more/n229.md") && !names.iter().any(|name| name.contains("secret")));
    // No answer shows where the notes are.
    let folder = place.0.path().display().to_string();
    assert!(!json!(all).to_string().contains(&folder));
    let templates = client.result("resources/templates/list", json!({}));
    assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], "refrain://notes/{id}");

    let uri = all[0]["uri"].as_str().unwrap();
    let note = more.join("n1.md").display().to_string();
    for other in [
        "",
        "file:///etc/passwd",
        &format!("file://{note}"),
        &note,
        "refrain://notes/../../etc/passwd",
        "refrain://notes/00000000000000000000000000000000",
        &format!("{uri}/../n2.md"),
        &uri.to_uppercase(),
        "refrain://notes/%2e%2e%2f",
    ] {
        let error = client.error("resources/read", json!({ "uri": other }));
        assert_eq!(error["code"], -32002, "{other}: {error}");
    }
    for cursor in ["", "x", "AAAA", &"A".repeat(10_000)] {
        assert_eq!(client.error("resources/list", json!({ "cursor": cursor }))["code"], -32602, "{cursor}");
    }
}

#[test]
fn an_answer_is_that_of_the_assistant_with_places_in_the_files() {
    let place = Place::new();
    let (server, assistant) = place.server(ServeOptions::default());
    let client = Client::new(&server);
    let own =
        assistant.answer(AnswerRequest::new(QUESTION), changed(JobOptions::default(), |it| it.keep = false));
    let own = own.unwrap().run().unwrap();
    let answer = client.call("answer_from_notes", json!({ "question": QUESTION }));
    assert_eq!(answer["answer"], own.text);
    assert_eq!(answer["sources"].as_array().unwrap().len(), own.passages.len());
    let copied = answer["copied"].as_array().unwrap();
    assert_eq!(copied.len(), own.provenance.copied.len());
    assert!(!copied.is_empty());
    for span in copied {
        let source = &answer["sources"][span["source"].as_u64().unwrap() as usize - 1];
        let path =
            own.passages[span["source"].as_u64().unwrap() as usize - 1].source.as_ref().unwrap().path.clone();
        let file = json!(fs::read_to_string(path).unwrap());
        let text = cut(&source["text"], &span["text_bytes"]);
        assert_eq!(cut(&file, &span["note_bytes"]), text);
        if span["is_exact"].as_bool().unwrap() {
            assert_eq!(cut(&answer["answer"], &span["answer_bytes"]), text);
        }
        let read = client.result("resources/read", json!({ "uri": source["uri"] }));
        assert!(read["contents"][0]["text"].as_str().unwrap().contains(&text));
    }
    let sentences = answer["sentences"].as_array().unwrap();
    assert!(sentences.iter().any(|sentence| sentence["support"] == "copied"), "{answer}");
    // With the arguments of the call.
    let one = client.call(
        "answer_from_notes",
        json!({ "question": QUESTION, "limit": 1, "max_tokens": 2, "keep": false }),
    );
    let cut = client.result(
        "tools/call",
        json!({ "name": "answer_from_notes", "arguments": { "question": QUESTION, "max_tokens": 2, "keep": false } }),
    );
    assert!(cut["content"][0]["text"].as_str().unwrap().contains("(Cut: "), "{cut}");
    assert_eq!((one["sources"].as_array().unwrap().len(), &one["is_cut"]), (1, &json!(true)));
    assert_eq!(one["stats"]["tokens"], 2);
    let why = client.failure("answer_from_notes", json!({ "question": "xyzzy" }));
    assert!(why.contains("no passage"), "{why}");
}

#[test]
fn summaries_are_those_of_the_assistant() {
    let place = Place::new();
    let (server, assistant) = place.server(ServeOptions::default());
    let client = Client::new(&server);
    let own = |request: SummarizeRequest| {
        let job = assistant.summarize(request, changed(JobOptions::default(), |it| it.keep = false));
        job.unwrap().run().unwrap().text
    };
    let path = place.0.path().join("notes/repair-roof.md");
    let found = client.call("search_notes", json!({ "query": QUESTION, "limit": 1 }));
    let note = &found["passages"][0]["uri"];
    let text = "The tap in the kitchen drips since May. Ada Voss repairs it on 3 June for 80 euros.";
    for (arguments, expected) in [
        (json!({ "note": note }), own(SummarizeRequest::notes([&path]))),
        (json!({ "text": text, "title": "Kitchen" }), own(SummarizeRequest::text("Kitchen", text))),
        (json!({ "query": QUESTION }), own(SummarizeRequest::query(QUESTION))),
        (
            json!({ "text": text, "instruction": "In one sentence." }),
            own(changed(SummarizeRequest::text("", text), |it| it.request = "In one sentence.".to_owned())),
        ),
    ] {
        let summary = client.call("summarize", with(&arguments, json!({ "keep": false })));
        assert_eq!(summary["summary"], expected, "{arguments}");
        assert_eq!(summary["notes"].as_array().unwrap().is_empty(), arguments.get("text").is_some());
    }
    let gone = json!({ "note": format!("refrain://notes/{}", "0".repeat(32)) });
    assert!(client.failure("summarize", gone).contains("no note"));
}

#[test]
fn progress_grows_until_the_response() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    let client = Client::new(&server);
    let arguments = json!({ "question": QUESTION });
    for token in [json!("a"), json!(7)] {
        let meta = json!({ "progressToken": token });
        let all = client.messages(
            "tools/call",
            json!({ "name": "answer_from_notes", "arguments": arguments, "_meta": meta }),
        );
        let (_, notices) = all.split_last().unwrap();
        assert!(!notices.is_empty());
        let progress = notices.iter().map(|notice| {
            assert_eq!(
                (&notice["method"], &notice["params"]["progressToken"]),
                (&json!("notifications/progress"), &token)
            );
            assert!(notice["params"]["message"].is_string());
            notice["params"]["progress"].as_f64().unwrap()
        });
        let progress: Vec<f64> = progress.collect();
        assert!(progress.windows(2).all(|pair| pair[0] < pair[1]), "{progress:?}");
    }
    // Without a token there is nothing but the response.
    assert_eq!(
        client.messages("tools/call", json!({ "name": "answer_from_notes", "arguments": arguments })).len(),
        1
    );
}

#[test]
fn a_cancelled_request_ends_its_job() {
    let place = Place::new();
    let (server, _, gate) = gated(&place, changed(Limits::default(), |it| it.running = 1));
    let n_cancelled = || server.metric("refrain_requests_cancelled_total") as usize;
    let turn = gate.enter(Priority::Interactive, &CancelToken::new()).expect("not cancelled");
    let answer = json!({ "name": "answer_from_notes", "arguments": { "question": QUESTION } });
    // By its id; one that waits for another; by the end of its session.
    let client = Client::new(&server);
    let running = client.begin("tools/call", answer.clone());
    server.wait(|server| server.metric("refrain_requests_running") == 1.0);
    let first = client.n_requests.get();
    let waiting = client.begin("tools/call", answer.clone());
    server.wait(|server| server.metric("refrain_requests_waiting") == 1.0);
    client.notify("notifications/cancelled", json!({ "requestId": client.n_requests.get() }));
    server.wait(|_| n_cancelled() == 1);
    client.notify("notifications/cancelled", json!({ "requestId": first }));
    server.wait(|_| n_cancelled() == 2);
    drop((running, waiting));
    let other = Client::new(&server);
    let running = other.begin("tools/call", answer.clone());
    server.wait(|server| server.metric("refrain_requests_running") == 1.0);
    assert_eq!(server.request("DELETE", "/mcp", &other.headers(), "").status / 100, 2);
    server.wait(|_| n_cancelled() == 3);
    drop(running);
    // The session and the server go on.
    drop(turn);
    assert!(client.call("answer_from_notes", answer["arguments"].clone())["answer"].is_string());
}

#[test]
fn refused_arguments_are_errors_of_the_protocol() {
    let place = Place::new();
    let (server, _) = place.server(changed(ServeOptions::default(), |it| it.mcp_forget = true));
    let client = Client::new(&server);
    for (name, arguments, param) in [
        ("search_notes", json!({}), "query"),
        ("search_notes", json!({ "query": "a", "limit": 51 }), "limit"),
        ("answer_from_notes", json!({ "question": ["a"] }), "question"),
        ("summarize", json!({ "note": "file:///etc/passwd" }), "note"),
        ("forget", json!({}), "note"),
        ("forget", json!({ "everything": true }), "note"),
        ("delete_all", json!({}), "name"),
    ] {
        let error = client.error("tools/call", json!({ "name": name, "arguments": arguments }));
        assert_eq!((&error["code"], &error["data"]["param"]), (&json!(-32602), &json!(param)), "{name}");
    }
    // Without notes, the work fails.
    let server = Running::with_models(
        ServeOptions::default(),
        Limits::default(),
        Models::new([spec(Assistant::builder(engine()).build().unwrap())]).unwrap(),
    );
    let client = Client::new(&server);
    assert!(client.failure("search_notes", json!({ "query": "a" })).contains("no notes"));
    assert!(client.failure("answer_from_notes", json!({ "question": "a" })).contains("no notes"));
    assert_eq!(client.resources(), Vec::<Value>::new());
    assert!(client.call("summarize", json!({ "text": "The tap drips." }))["summary"].is_string());
}

#[test]
fn other_names_origins_and_tokens_are_refused() {
    let place = Place::new();
    let (server, _) = place.server(changed(ServeOptions::default(), |it| it.token = Some(TOKEN.to_owned())));
    let authorization = format!("Bearer {TOKEN}");
    let token = ("Authorization", authorization.as_str());
    let begin = initialize(VERSION).to_string();
    let status = |method: &str, headers: &[(&str, &str)]| {
        server.request(method, "/mcp", &[&[ACCEPT, JSON], headers].concat(), &begin).status
    };
    assert_eq!(status("POST", &[token]), 200);
    for method in ["POST", "GET", "DELETE"] {
        assert_eq!(status(method, &[]), 401);
        assert_eq!(status(method, &[token, ("Host", "evil.example")]), 403);
        assert_eq!(
            status(method, &[token, ("Host", "evil.example:8080"), ("Origin", "http://evil.example:8080")]),
            403
        );
        assert_eq!(status(method, &[token, ("Origin", "http://evil.example")]), 403);
        assert_eq!(status(method, &[token, ("Origin", "null")]), 403);
        assert_eq!(status(method, &[token, ("Sec-Fetch-Site", "cross-site")]), 403);
    }
    assert_eq!(status("PUT", &[token]), 405);
}

#[test]
fn what_a_client_sends_has_limits() {
    let place = Place::new();
    let mut limits = Limits::default();
    limits.json_values = 1000;
    limits.body_bytes = 100_000;
    let (server, _, _) = gated(&place, limits);
    let client = Client::new(&server);
    let post = |body: &str| server.request("POST", "/mcp", &client.headers(), body);
    assert_eq!(post(&"x".repeat(100_001)).status, 413);
    let many = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "a", "arguments": { "a": vec![0; 2000] } } });
    assert_eq!(post(&many.to_string()).error()["code"], "too_many_values");
    for not in ["", "{", "[]", "null", &"[".repeat(50_000), r#"{"jsonrpc": "2.0"}"#] {
        let status = post(not).status;
        assert!((400..500).contains(&status), "{status} {}", &not[..not.len().min(20)]);
    }
    assert_eq!(server.request("POST", "/mcp", &client.headers()[..1], "{}").status, 415);
    assert_eq!(server.request("POST", "/mcp", &client.headers()[1..], "{}").status, 406);
    // Sessions too: a new one ends the one that was used least recently.
    let all: Vec<Client<'_>> = (0..65).map(|_| Client::new(&server)).collect();
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let status = |client: &Client<'_>| server.request("POST", "/mcp", &client.headers(), &ping).status;
    assert_eq!((status(&client), status(&all[0])), (404, 404));
    assert!(all[1..].iter().all(|client| status(client) == 200));
}

/// Tools that delete are absent, and refused like any other name, unless the user has allowed them.
#[test]
fn nothing_is_deleted_unless_the_user_allows_it() {
    let place = Place::new();
    let (server, assistant) = place.server(ServeOptions::default());
    let client = Client::new(&server);
    let n_files = assistant.note_files().unwrap().len();
    let unknown = client.error("tools/call", json!({ "name": "erase", "arguments": {} }));
    for arguments in [json!({ "folder": "notes" }), json!({ "before": "2999-01-01" }), json!({})] {
        let refused = client.error("tools/call", json!({ "name": "forget", "arguments": arguments }));
        assert_eq!(refused, unknown);
    }
    let first = messages(&server.request("POST", "/mcp", &[ACCEPT, JSON], &initialize(VERSION).to_string()));
    assert!(!first[0]["result"]["instructions"].as_str().unwrap().contains("forget"), "{first:?}");
    assert_eq!(assistant.note_files().unwrap().len(), n_files);
    let (server, _) = Place::new().server(changed(ServeOptions::default(), |it| it.mcp_forget = true));
    let tools = Client::new(&server).result("tools/list", json!({}));
    let destructive: Vec<_> = tools["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|tool| tool["annotations"]["destructiveHint"] == true)
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(destructive, ["forget"]);
    let first = messages(&server.request("POST", "/mcp", &[ACCEPT, JSON], &initialize(VERSION).to_string()));
    assert!(first[0]["result"]["instructions"].as_str().unwrap().contains("`forget`"), "{first:?}");
}

#[test]
fn what_is_forgotten_is_found_no_more() {
    let place = Place::new();
    let (server, assistant) = place.server(changed(ServeOptions::default(), |it| it.mcp_forget = true));
    let client = Client::new(&server);
    let answer = client.call("answer_from_notes", json!({ "question": QUESTION }));
    let note = answer["sources"][0]["uri"].clone();
    assert_eq!(answer["is_kept"], true);
    let forgotten = client.call("forget", json!({ "note": note }));
    assert_eq!(
        (&forgotten["n_answers"], &forgotten["is_notes_pending"]),
        (&json!(1), &json!(false)),
        "{forgotten}"
    );
    assert_eq!(client.error("resources/read", json!({ "uri": note }))["code"], -32002);
    assert!(client.resources().iter().all(|listed| listed["uri"] != note));
    let found = client.call("search_notes", json!({ "query": QUESTION, "limit": 50 }));
    assert!(found["passages"].as_array().unwrap().iter().all(|passage| passage["uri"] != note));
    assert!(client.failure("forget", json!({ "note": note })).contains("no note"));
    assert!(place.0.path().join("notes/repair-roof.md").exists(), "the files stay");
    // A time, and a folder.
    client.call("answer_from_notes", json!({ "question": "Who comes along on the trip to Aniarda?" }));
    assert_eq!(client.call("forget", json!({ "before": "2000-01-01" }))["n_answers"], 0);
    assert_eq!(client.call("forget", json!({ "before": "2999-01-01" }))["n_answers"], 1);
    assert!(client.failure("forget", json!({ "folder": "notes/none" })).contains("no note"));
    client.call("forget", json!({ "folder": "notes" }));
    assert_eq!((client.resources().len(), assistant.note_files().unwrap().len()), (0, 0));
}

#[test]
fn requests_without_a_session_are_answered_as_the_newest_version_has_them() {
    let place = Place::new();
    let (server, _) = place.server(ServeOptions::default());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let post = |method: &str, name: Option<&str>, params: Value| {
        let params = with(&params, json!({ "_meta": meta }));
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let mut headers = vec![ACCEPT, JSON, ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
        headers.extend(name.map(|name| ("Mcp-Name", name)));
        server.request("POST", "/mcp", &headers, &body)
    };
    let discovered = messages(&post("server/discover", None, json!({}))).remove(0);
    assert!(discovered["result"]["supportedVersions"].to_string().contains("2026-07-28"), "{discovered}");
    let call = json!({ "name": "search_notes", "arguments": { "query": QUESTION } });
    let reply = post("tools/call", Some("search_notes"), call);
    assert!(!reply.headers.contains_key("mcp-session-id"));
    let found = messages(&reply).pop().unwrap();
    assert_eq!(
        found["result"]["structuredContent"]["passages"][0]["name"], "notes/repair-roof.md",
        "{found}"
    );
}

#[test]
fn an_open_stream_ends_with_the_server() {
    let place = Place::new();
    let assistant = place.assistant(Arc::default(), AssistantOptions::default());
    // A stream that stayed open would keep the server for this time.
    let mut limits = Limits::default();
    limits.grace_time = Duration::from_secs(100_000);
    let models = Models::new([spec(assistant)]).unwrap();
    let server = Server::bind(
        changed(ServeOptions::default(), |it| {
            it.port = 0;
            it.limits = limits;
        }),
        models,
    )
    .unwrap();
    let (address, stop) = (server.local_addr(), CancelToken::new());
    let theirs = stop.clone();
    let thread = std::thread::spawn(move || server.run(&theirs));
    let running = Running::of(address, stop.clone());
    let client = Client::new(&running);
    let stream = running.begin_with("GET", "/mcp", &client.headers(), "");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    stop.cancel();
    thread.join().unwrap().unwrap();
}

#[test]
fn no_answer_shows_where_the_notes_are() {
    let place = Place::new();
    let (server, _) = place.server(changed(ServeOptions::default(), |it| it.mcp_forget = true));
    let client = Client::new(&server);
    let folder = place.0.path();
    let shows = |value: &Value| value.to_string().contains(Path::new(folder).to_str().unwrap());
    for (name, arguments) in [
        ("search_notes", json!({ "query": QUESTION })),
        ("answer_from_notes", json!({ "question": QUESTION })),
        ("summarize", json!({ "query": QUESTION })),
        ("forget", json!({ "before": "2999-01-01" })),
    ] {
        let response =
            client.messages("tools/call", json!({ "name": name, "arguments": arguments })).pop().unwrap();
        assert!(!shows(&response), "{response}");
    }
}
