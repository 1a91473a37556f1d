//! An HTTP server for tests that checks passwords, as RabbitMQ's HTTP backend asks for.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Knows one password and counts requests. It serves until the process ends.
pub struct PasswordServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl PasswordServer {
    /// Starts a server that gives `answer` to requests whose parameters are these, and `deny` to others.
    pub fn start(parameters: &str, answer: &str) -> Result<PasswordServer> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let server = PasswordServer {
            address: listener.local_addr()?,
            requests: requests.clone(),
        };
        let (parameters, answer) = (parameters.to_owned(), answer.to_owned());
        std::thread::Builder::new()
            .name("password-server".to_owned())
            .spawn(move || {
                for socket in listener.incoming().flatten() {
                    // The client may have closed its connection.
                    let Ok((mut socket, request, given)) = read(socket) else {
                        continue;
                    };
                    let mut all = requests.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push(request);
                    drop(all);
                    let body = match given == parameters {
                        true => answer.as_str(),
                        false => "deny",
                    };
                    let length = body.len();
                    let _ = write!(
                        socket,
                        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                    );
                }
            })?;
        Ok(server)
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("http://{}/auth/user", self.address)
    }

    /// The first lines of all requests.
    pub fn requests(&self) -> Vec<String> {
        let all = self.requests.lock();
        all.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads a request: its first line, and the parameters of its query or form.
fn read(socket: TcpStream) -> std::io::Result<(TcpStream, String, String)> {
    let mut reader = BufReader::new(socket);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let target = request.split(' ').nth(1).unwrap_or_default();
    let given = match target.split_once('?') {
        Some((_, query)) => query.to_owned(),
        None => String::from_utf8_lossy(&body).into_owned(),
    };
    Ok((reader.into_inner(), request, given))
}
