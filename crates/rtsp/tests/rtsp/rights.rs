//! Paths of principals for playing.

use tactus_control::rights::Paths;
use tactus_core::units::SECOND;

use super::Fixture;

#[test]
fn s14_a_principal_plays_only_below_its_paths() {
    for (paths, status) in [("/elsewhere/", 403), ("/", 200)] {
        let fixture = Fixture::with(SECOND.times(2), |settings| {
            settings.add_principal("anna").paths = Paths::parse(&[paths.into()]).expect("paths");
        });
        let mut client = fixture.connect();
        client.credentials = Some(("anna".into(), "correct-horse".into()));
        assert_eq!(client.ask_for("DESCRIBE", &fixture.url(), "").status, status, "{paths}");
        let url = format!("{}/track1", fixture.url());
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
        assert_eq!(client.ask_for("SETUP", &url, transport).status, status, "{paths}");
    }
}
