//! Language tags of tracks.
//!
//! Promise: a tag is the shortest code of its language, as RFC 5646 (section 2.2.1) asks.

/// The tag of a language of ISO 639-2, as it stands in the header of a track; `None` if it is
/// undetermined or no code.
pub(super) fn tag(code: [u8; 3]) -> Option<String> {
    let code = std::str::from_utf8(&code).ok()?;
    // `und`, and the codes that an unset header gives.
    let is_told = code.bytes().all(|byte| byte.is_ascii_lowercase()) && code != "und";
    let short = SHORT.split(' ').find_map(|pair| pair.strip_prefix(code));
    is_told.then(|| short.unwrap_or(code).to_owned())
}

/// Languages with a code of two letters, which follows those of three (ISO 639-1 and 639-2, both
/// the terminological and the bibliographic ones).
const SHORT: &str = "\
    aaraa abkab afraf akaak albsq amham araar argan armhy asmas avaav aveae aymay azeaz bakba \
    bambm baqeu belbe benbn bihbh bisbi bodbo bosbs brebr bulbg burmy catca cescs chach chece \
    chizh chucu chvcv corkw cosco crecr cymcy czecs danda deude divdv dutnl dzodz ellel engen \
    epoeo estet euseu eweee faofo fasfa fijfj finfi frafr frefr fryfy fulff geoka gerde glagd \
    glega glggl glvgv greel grngn gujgu hatht hauha hebhe herhz hinhi hmoho hrvhr hunhu hyehy \
    iboig iceis idoio iiiii ikuiu ileie inaia indid ipkik islis itait javjv jpnja kalkl kankn \
    kasks katka kaukr kazkk khmkm kikki kinrw kirky komkv konkg korko kuakj kurku laolo latla \
    lavlv limli linln litlt ltzlb lublu luglg macmk mahmh malml maomi marmr mayms mkdmk mlgmg \
    mltmt monmn mrimi msams myamy nauna navnv nblnr ndend ndong nepne nldnl nnonn nobnb norno \
    nyany ocioc ojioj orior ormom ossos panpa perfa plipi polpl porpt pusps quequ rohrm ronro \
    rumro runrn rusru sagsg sansa sinsi slksk slosk slvsl smese smosm snasn sndsd somso sotst \
    spaes sqisq srdsc srpsr sswss sunsu swasw swesv tahty tamta tattt telte tgktg tgltl thath \
    tibbo tirti tonto tsntn tsots tuktk turtr twitw uigug ukruk urdur uzbuz venve vievi volvo \
    welcy wlnwa wolwo xhoxh yidyi yoryo zhaza zhozh zulzu";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r09_a_language_has_its_shortest_code() {
        for (code, expected) in [
            (b"eng", Some("en")),
            (b"deu", Some("de")),
            (b"ger", Some("de")),
            (b"zul", Some("zu")),
            (b"aar", Some("aa")),
            (b"gsw", Some("gsw")),
            (b"und", None),
            (b"```", None),
            (b"e\x7fg", None),
        ] {
            assert_eq!(tag(*code).as_deref(), expected);
        }
    }
}
