//! The commands through nginx with TLS, as in the guide.

use std::process::{Command, Stdio};

use tactus_testkit::process::{Process, free_port};

use super::server::{ProgramOutput, Server, program, tactus, text};

/// nginx before a server: `https` with its own certificate, and `http` that redirects to it.
struct Front {
    _nginx: Process,
    port: u16,
    plain: u16,
    certificate: String,
}

impl Front {
    /// With a self-signed certificate for `names`; `constraints` tells whether it is an
    /// authority's.
    fn new(server: &Server, names: &str, constraints: &str) -> Self {
        let dir = server.dir.path();
        let (key, certificate) = (dir.join("key.pem"), dir.join("cert.pem"));
        let made = ProgramOutput::of(program("openssl").args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            &format!("subjectAltName={names}"),
            "-addext",
            &format!("basicConstraints=critical,{constraints}"),
            "-keyout",
            text(&key),
            "-out",
            text(&certificate),
        ]));
        assert_eq!(made.code, 0, "{made:?}");
        let (port, plain) = (free_port(), free_port());
        let place = text(dir);
        let config = format!(
            "daemon off; master_process off; error_log {place}/nginx.log; pid {place}/nginx.pid;\n\
             events {{}}\n\
             http {{\n\
               access_log off;\n\
               client_body_temp_path {place}/b; proxy_temp_path {place}/p;\n\
               fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;\n\
               server {{\n\
                 listen 127.0.0.1:{port} ssl;\n\
                 ssl_certificate {place}/cert.pem; ssl_certificate_key {place}/key.pem;\n\
                 client_max_body_size 0;\n\
                 location / {{\n\
                   proxy_pass {base}; proxy_http_version 1.1;\n\
                   proxy_set_header Host $http_host;\n\
                   proxy_request_buffering off; proxy_buffering off;\n\
                 }}\n\
               }}\n\
               server {{ listen 127.0.0.1:{plain};\n\
                 return 308 https://127.0.0.1:{port}$request_uri; }}\n\
             }}\n",
            base = server.base()
        );
        let file = server.file("nginx.conf", config.as_bytes());
        let mut nginx = Command::new("nginx");
        nginx.args(["-e", &format!("{place}/nginx.log"), "-c", text(&file)]).stdin(Stdio::null());
        let nginx = nginx.spawn().expect("nginx is missing: cargo xtask setup");
        let front = Self {
            _nginx: Process(nginx),
            port,
            plain,
            certificate: text(&certificate).to_owned(),
        };
        for _ in 0..2000 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return front;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("nginx does not listen after ten seconds");
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    fn tactus(&self, server: &Server, args: &[&str]) -> ProgramOutput {
        let mut command = tactus(args);
        command.env("TACTUS_TOKEN", server.token()).env("SSL_CERT_FILE", &self.certificate);
        ProgramOutput::of(&mut command)
    }
}

/// Names of this machine.
const HERE: &str = "DNS:localhost,IP:127.0.0.1";

#[test]
fn n13_every_command_speaks_https_through_a_proxy() {
    let server = Server::with_uploads();
    let front = Front::new(&server, HERE, "CA:FALSE");
    let bytes: Vec<u8> =
        (0..1_500_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = server.file("a b.bin", &bytes);
    let run = |args: &[&str]| {
        let said = front.tactus(&server, args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
        said
    };
    run(&["put", text(&file), &front.url("/films/")]);
    assert!(server.stored("films/a b.bin").is_some_and(|stored| stored == bytes));
    let copy = server.dir.path().join("copy");
    run(&["get", &front.url("/films/a%20b.bin?rate=max"), "-o", text(&copy)]);
    assert!(std::fs::read(&copy).is_ok_and(|copy| copy == bytes));
    assert!(run(&["ls", &front.url("/films/")]).out.contains("a b.bin"));
    run(&["mv", &front.url("/films/a%20b.bin"), &front.url("/films/c.bin")]);
    run(&["rm", &front.url("/films/c.bin")]);
    assert_eq!(server.stored("films/c.bin"), None);
    run(&["channel", "list", &front.url("/")]);
    // The plain address redirects to it.
    let plain = format!("http://127.0.0.1:{}", front.plain);
    run(&["put", text(&file), &format!("{plain}/again/")]);
    assert!(server.stored("again/a b.bin").is_some_and(|stored| stored == bytes));
    run(&["get", "--force", &format!("{plain}/again/a%20b.bin?rate=max"), "-o", text(&copy)]);
    assert!(std::fs::read(&copy).is_ok_and(|copy| copy == bytes));
}

#[test]
fn n13_an_untrusted_certificate_is_refused_with_advice() {
    let server = Server::with_uploads();
    let front = Front::new(&server, HERE, "CA:TRUE");
    let said = server.tactus(&["ls", &front.url("/")]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("SSL_CERT_FILE"), "{said:?}");
    // A self-signed certificate as openssl creates it is accepted if the user trusts it.
    let said = front.tactus(&server, &["ls", &front.url("/")]);
    assert_eq!(said.code, 0, "{said:?}");
    drop(front);
    for constraints in ["CA:TRUE", "CA:FALSE"] {
        let front = Front::new(&server, "DNS:elsewhere.example", constraints);
        let said = front.tactus(&server, &["ls", &front.url("/")]);
        assert!(said.code == 1 && said.err.contains("not valid for name"), "{said:?}");
    }
    // A server without TLS gives another error than an unreachable one.
    let said = server.tactus(&["ls", &server.url("/").replace("http:", "https:")]);
    assert!(said.code == 1 && said.err.contains("TLS"), "{said:?}");
}
