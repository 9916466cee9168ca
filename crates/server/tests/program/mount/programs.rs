//! Real programs that write to the mount.

use super::*;

/// By each way that removes its journal at the end of a transaction.
#[test]
fn sqlite_keeps_its_databases_there() {
    let served = Served::new();
    installed("sqlite3", "sqlite3");
    let mounted = served.mount(RW);
    for journal in ["delete", "truncate", "persist"] {
        let base = mounted.path(&format!("{journal}.db"));
        let said = script(
            "printf 'pragma journal_mode=%s; create table t(a,b); \
             with recursive n(i) as (select 1 union all select i+1 from n where i<2000) \
             insert into t select i, hex(randomblob(50)) from n;' \"$2\" | sqlite3 $1
             sqlite3 $1 'begin; delete from t where a%3=0; update t set b=1 where a%5=0; commit;'
             sqlite3 $1 'begin; delete from t; rollback;'
             sqlite3 $1 'vacuum; pragma integrity_check; select count(*) from t;'",
            &[&base, Path::new(journal)],
        );
        assert_eq!(said, format!("{journal}\nok\n1334\n"));
        // It is a title like any other.
        let copy = served.dir.path().join("copy.db");
        fs::copy(served.titles.join(format!("{journal}.db")), &copy).expect("a title");
        assert_eq!(script("sqlite3 $1 'select count(*) from t;'", &[&copy]), "1334\n");
    }
}

#[test]
fn git_clones_and_commits_there() {
    let served = Served::new();
    installed("git", "git");
    let source = served.dir.path().join("source");
    let mounted = served.mount(RW);
    let said = script(
        "export HOME=$1 GIT_CONFIG_NOSYSTEM=1
         git init -q $1; cd $1; git config user.name n; git config user.email e
         mkdir d; for i in 1 2 3 4 5 6; do echo $i > d/$i; git add .; git commit -qm $i; done
         git clone -q $1 $2/clone; cd $2/clone; git config user.name n; git config user.email e
         echo more > d/7; git rm -q d/1; git mv d/2 d/8; git add .; git commit -qm more
         git gc -q; git fsck --strict; git status --porcelain; git log --oneline | wc -l
         git push -q origin HEAD:refs/heads/back; cd $1; git diff --stat back HEAD | tail -1",
        &[&source, &mounted.place],
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.first(), Some(&"7"), "{said}");
    assert!(said.contains("3 files changed"), "{said}");
}

#[test]
fn rsync_and_cp_store_what_they_have_read() {
    let served = Served::new();
    installed("rsync", "rsync");
    let source = served.dir.path().join("source");
    fs::create_dir_all(source.join("a/b")).expect("a directory");
    for (nth, len) in [0, 1, 4096, 100_000, 3_000_000].into_iter().enumerate() {
        fs::write(source.join(format!("a/b/{nth}")), content(nth as u64, len)).expect("room");
    }
    let mounted = served.mount(RW);
    script(
        "rsync -r --times $1/ $2/one; rsync -rc --times --inplace $1/ $2/one
         cp -r --preserve=timestamps $1 $2/two; mv $2/two $2/three
         diff -r $1 $2/one; diff -r $1 $2/three; diff -r $1 $3/one; diff -r $1 $3/three
         rsync -rn --times --itemize-changes $1/ $2/one/ | grep '^>' && exit 1
         head -c 1000000 /dev/zero | dd of=$1/a/b/4 conv=notrunc status=none
         rsync -rc --times --inplace $1/ $2/one; diff -r $1 $3/one
         rm -r $2/three; test ! -e $3/three",
        &[&source, &mounted.place, &served.titles],
    );
}

/// MP4 with its index first: the program reads what it is writing, and moves it.
#[test]
fn ffmpeg_moves_the_index_of_its_film_to_the_front() {
    let served = Served::new();
    let ffmpeg = installed("ffmpeg", "ffmpeg");
    let mounted = served.mount(RW);
    let path = mounted.path("film.mp4");
    let mut command = Command::new(ffmpeg);
    command.args(["-v", "error", "-f", "lavfi", "-i", "testsrc=duration=2:size=320x240:rate=25"]);
    command.args(["-c:v", "mpeg4", "-movflags", "+faststart"]).arg(&path);
    let output = command.stdin(Stdio::null()).output().expect("ffmpeg runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = fs::read(served.titles.join("film.mp4")).expect("a title");
    let at = |tag: &[u8]| bytes.windows(4).position(|bytes| bytes == tag).expect("a box");
    assert!(at(b"moov") < at(b"mdat"), "the index comes first");
    let said = script("ffmpeg -v error -i $1 -f null - 2>&1", &[&path]);
    assert_eq!(said, "");
}

#[test]
fn fio_finds_what_it_has_written() {
    let served = Served::new();
    installed("fio", "fio");
    let mounted = served.mount(RW);
    script(
        "cd $1
         fio --name=a --filename=a --size=8m --rw=randwrite --bsrange=1k-64k --bs_unaligned=1 \\
         --ioengine=psync --fsync=64 --verify=crc32c --verify_fatal=1 --output=/dev/null
         fio --name=b --filename=b --size=8m --rw=randwrite --bs=4k --ioengine=mmap --fsync=256 \\
         --verify=crc32c --verify_fatal=1 --output=/dev/null",
        &[&mounted.place],
    );
}

#[test]
fn bonnie_writes_rewrites_and_seeks_there() {
    let served = Served::new();
    installed("bonnie++", "bonnie++");
    let mounted = served.mount(RW);
    // Without the test that creates thousands of files, each of which would be flushed.
    script("bonnie++ -q -f -n 0 -r 8 -s 16 -u $(id -un) -d $1", &[&mounted.place]);
    assert_eq!(fs::read_dir(&mounted.place).expect("a directory").count(), 0);
}

#[test]
fn samba_shares_what_its_clients_write_there() {
    let served = Served::new();
    installed("smbclient", "smbclient");
    installed("smbd", "samba");
    let mounted = served.mount(RW);
    let own = served.dir.path().join("samba");
    fs::create_dir(&own).expect("a directory");
    fs::write(own.join("long"), content(6, 3_000_000)).expect("room");
    let configuration = own.join("smb.conf");
    let (place, share) = (own.display(), mounted.place.display());
    let user = script("id -un", &[]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a port").port().to_string();
    let text = format!(
        "[global]\nserver role = standalone server\nmap to guest = Bad User\n\
         bind interfaces only = yes\ninterfaces = lo\nsmb ports = {port}\n\
         lock directory = {place}\nstate directory = {place}\ncache directory = {place}\n\
         private dir = {place}\npid directory = {place}\nncalrpc dir = {place}/rpc\n\
         log file = {place}/log\nload printers = no\ndisable spoolss = yes\n\
         [films]\npath = {share}\nread only = no\nguest ok = yes\nforce user = {user}"
    );
    fs::write(&configuration, text).expect("room");
    let smb = |commands: &str| {
        // It serves one client and ends, with all processes of its group: `timeout` makes one.
        let mut server = Command::new("timeout");
        server.args(["60", "smbd", "-i", "-s"]).arg(&configuration);
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Process(server.spawn().expect("it runs"));
        let said = loop {
            let mut client = Command::new("smbclient");
            client.args(["//127.0.0.1/films", "-N", "-p", &port, "-s"]).arg(&configuration);
            client.arg("-c").arg(format!("lcd {place}; {commands}"));
            let output = client.stdin(Stdio::null()).output().expect("it runs");
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if !said.contains("NT_STATUS_CONNECTION_REFUSED") {
                assert!(output.status.success() && !said.contains("NT_STATUS"), "{said}");
                break said;
            }
            assert!(server.0.try_wait().expect("a child").is_none(), "smbd has ended");
            std::thread::sleep(Duration::from_millis(50));
        };
        server.0.wait().expect("a child");
        said
    };
    smb("mkdir d; put long d/long; rename d/long d/moved; put long gone; del gone");
    let bytes = content(6, 3_000_000);
    assert!(get(&served, "d/moved") == Some(bytes.clone()));
    assert_eq!(get(&served, "gone"), None);
    put(&served, "new", b"by another door");
    let listed = smb("get d/moved back; get new new; ls");
    assert!(listed.contains(" new "), "{listed}");
    assert!(fs::read(own.join("back")).expect("a file") == bytes);
    assert_eq!(fs::read(own.join("new")).expect("a file"), b"by another door");
}
