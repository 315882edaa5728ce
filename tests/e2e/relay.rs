//! A relay between a gate and its policy service that keeps what the gate sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub(crate) struct Relay {
    /// As `--policy` takes it.
    pub(crate) url: String,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Relay {
    /// To the service at `url`.
    pub(crate) fn start(url: &str) -> Self {
        let service = url.strip_prefix("http://").expect("a TCP address");
        let service = service.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for gate in listener.incoming() {
                let gate = gate.expect("a connection");
                let service = TcpStream::connect(&service).expect("the service");
                let back = (
                    service.try_clone().expect("a descriptor"),
                    gate.try_clone().expect("a descriptor"),
                );
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || {
                    let keep =
                        |bytes: &[u8]| kept.lock().expect("no panic").extend_from_slice(bytes);
                    pass(gate, service, keep);
                });
                std::thread::spawn(move || pass(back.0, back.1, |_| {}));
            }
        });
        Self {
            url: format!("http://{address}"),
            sent,
        }
    }

    /// All that gates have sent so far.
    pub(crate) fn sent(&self) -> Vec<u8> {
        self.sent.lock().expect("no panic").clone()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        see(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
