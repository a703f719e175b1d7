//! A fleet on a server that speaks the protocol of S3: `moto`, started here if `REFRAIN_TEST_S3` names its program.

#![cfg(feature = "s3")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use refrain_fleet::{Fleet, FleetError, FleetOptions};

use crate::support::{KEY, drafted, open, response};

/// A running server, ended on drop.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(program: &std::ffi::OsStr) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let mut command = Command::new(program);
        command
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = Server { child: command.spawn().expect("starts"), port };
        let start = Instant::now();
        while !server.answers("PUT /bucket") {
            assert!(start.elapsed() < Duration::from_secs(60), "the server does not start");
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    /// Whether a request without a body succeeds.
    fn answers(&self, request: &str) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let sent = write!(
            stream,
            "{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let mut answer = String::new();
        sent.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.starts_with("HTTP/1.1 200")
    }

    fn fleet(&self, host: &str, budget: Duration) -> Fleet {
        let settings = [
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value));
        let options = FleetOptions { budget, ..FleetOptions::new(host) };
        Fleet::connect("s3://bucket/some/folder", settings, options).expect("connects")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hosts_share_publish_delete_and_survive_the_end_of_the_server() {
    let Some(program) = std::env::var_os("REFRAIN_TEST_S3") else {
        println!("skipped: REFRAIN_TEST_S3 names no server (pip install 'moto[server]')");
        return;
    };
    let server = Server::start(&program);
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second] = ["first", "second"].map(|host| open(&folder.path().join(host)));
    for i in 0..300 {
        first.append("mail", &response(i)).expect("appends");
    }
    let long = Duration::from_secs(60);
    let published = server.fleet("first", long).publish(&first);
    assert!(published.failed.is_empty() && published.n_moved > 10, "{published:?}");
    let pulled = server.fleet("second", long).pull(&second, &["mail"]);
    assert!(pulled.failed.is_empty() && pulled.n_moved > 10, "{pulled:?}");
    second.maintain().expect("reads");
    assert!((0..300).filter(|&i| drafted(&second, i) == response(i).len()).count() > 100);
    println!("{} segments, {} bytes", pulled.n_moved, pulled.moved_bytes);

    first.maintain().expect("merges");
    let published = server.fleet("first", long).publish(&first);
    assert!(published.failed.is_empty() && published.n_removed > 0, "{published:?}");
    let pulled = server.fleet("second", long).pull(&second, &["mail"]);
    assert!(pulled.failed.is_empty() && pulled.n_removed > 0, "{pulled:?}");

    assert!(server.fleet("third", long).delete(KEY, "mail").expect("deletes") > 0);
    let pulled = server.fleet("second", long).pull(&second, &["mail"]);
    assert!(pulled.failed.is_empty(), "{:?}", pulled.failed);
    assert!(second.pulled("mail").expect("reads").is_empty());
    let published = server.fleet("first", long).publish(&first);
    assert!(published.failed.is_empty() && published.n_moved == 0, "{published:?}");

    let fleet = server.fleet("second", Duration::from_millis(500));
    drop(server);
    let start = Instant::now();
    let pulled = fleet.pull(&second, &["mail"]);
    let is_named =
        |failed: &FleetError| matches!(failed, FleetError::OutOfTime { .. } | FleetError::Store { .. });
    assert!(!pulled.failed.is_empty() && pulled.failed.iter().all(is_named), "{pulled:?}");
    assert!(start.elapsed() < Duration::from_secs(10));
}
