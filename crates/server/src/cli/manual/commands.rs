//! One page for each command, from its `--help`.
//!
//! Promise: the page has all of the help: options with values and defaults, examples, exit codes.

use clap::{Arg, ArgAction, Command};

use super::Page;
use super::roff::{Roff, bold, escaped, italic};

/// The pages of `command` and its subcommands.
pub(super) fn pages(mut command: Command) -> Vec<Page> {
    command.build();
    let mut pages = Vec::new();
    add(&command, &[], &mut pages);
    pages
}

fn add(command: &Command, above: &[&str], pages: &mut Vec<Page>) {
    let words: Vec<&str> = above.iter().copied().chain([command.get_name()]).collect();
    pages.push(page(command, &words));
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        add(below, &words, pages);
    }
}

fn page(command: &Command, words: &[&str]) -> Page {
    let name = words.join("-");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let help = Help::of(command);
    let mut page = Roff::new(&name, 1);
    page.section("NAME");
    page.line(&format!("{} \\- {}", escaped(&name), escaped(&lowered(&about))));
    page.section("SYNOPSIS");
    synopsis(command, words, &mut page);
    page.section("DESCRIPTION");
    let long = command.get_long_about().map(ToString::to_string);
    page.text(&long.unwrap_or_else(|| format!("{about}.")));
    for paragraph in &help.description {
        page.paragraph();
        page.text(paragraph);
    }
    arguments(command, &mut page);
    let commands: Vec<_> =
        command.get_subcommands().filter(|below| below.get_name() != "help").collect();
    if !commands.is_empty() {
        page.part("Commands");
        for below in &commands {
            page.item(&bold(below.get_name()));
            let about = below.get_about().map(ToString::to_string).unwrap_or_default();
            page.text(&format!("{about}; see tactus-{}(1).", rest(words, below.get_name())));
        }
    }
    options(command, &mut page);
    exit_status(&help, &mut page);
    page.section("ENVIRONMENT");
    for (name, what) in ENVIRONMENT {
        page.item(&bold(name));
        page.text(what);
    }
    page.section("FILES");
    for (name, what) in FILES {
        page.item(&italic(name));
        page.text(what);
    }
    if let Some(examples) = &help.examples {
        page.section("EXAMPLES");
        page.example(examples);
    }
    page.section("SEE ALSO");
    see_also(words, &commands, &mut page);
    Page { file: format!("{name}.1"), text: page.finish() }
}

/// The subcommand in the page's name: `channel-add` of `tactus channel` and `add`.
fn rest(words: &[&str], below: &str) -> String {
    words[1..].iter().copied().chain([below]).collect::<Vec<_>>().join("-")
}

/// The synopsis: the command with each option and its value.
fn synopsis(command: &Command, words: &[&str], page: &mut Roff) {
    let mut line = bold(&words.join(" "));
    for option in visible(command).filter(|arg| !arg.is_positional()) {
        let written = written(option, " | ");
        let written = if option.is_required_set() { written } else { format!("[{written}]") };
        line += &format!(" {written}");
    }
    // A usage line of the command's own replaces the generated one.
    let usage = command.clone().render_usage().to_string();
    let overridden = usage.rsplit_once("[OPTIONS] ").map(|(_, operands)| operands.to_owned());
    match overridden {
        Some(operands) => {
            for word in operands.split_whitespace() {
                let plain = word.replace(['<', '>'], "");
                line += &format!(" {}", italic(&plain));
            }
        }
        None => {
            for operand in visible(command).filter(|arg| arg.is_positional()) {
                let value = italic(&values(operand));
                let value = if operand.is_required_set() { value } else { format!("[{value}]") };
                line += &format!(" {value}");
            }
        }
    }
    if command.has_subcommands() {
        line += &format!(" {} [{}]", italic("COMMAND"), italic("ARGUMENTS"));
    }
    page.line(&line);
}

fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set())
}

/// `-o, --output FILE` with fonts.
fn written(arg: &Arg, between: &str) -> String {
    let names =
        [arg.get_short().map(|c| format!("-{c}")), arg.get_long().map(|l| format!("--{l}"))];
    let names: Vec<_> = names.into_iter().flatten().map(|name| bold(&name)).collect();
    let mut text = names.join(between);
    if takes_value(arg) {
        text += &format!(" {}", italic(&values(arg)));
    }
    text
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn values(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let text = match names {
        [] => arg.get_id().to_string().to_uppercase(),
        names => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    };
    let many = matches!(arg.get_action(), ArgAction::Append) && arg.is_positional();
    if many { format!("{text}...") } else { text }
}

fn described(arg: &Arg, page: &mut Roff) {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string);
    page.text(&format!("{}.", help.unwrap_or_default().trim_end_matches('.')));
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value(arg) && !defaults.is_empty() {
        page.text(&format!("By default {}.", defaults.join(" ")));
    }
    let possible: Vec<_> =
        arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
    if takes_value(arg) && !possible.is_empty() {
        page.text(&format!("One of: {}.", possible.join(", ")));
    }
}

fn arguments(command: &Command, page: &mut Roff) {
    let operands: Vec<_> = visible(command).filter(|arg| arg.is_positional()).collect();
    if operands.is_empty() {
        return;
    }
    page.part("Arguments");
    for operand in operands {
        page.item(&italic(&values(operand)));
        described(operand, page);
    }
}

fn options(command: &Command, page: &mut Roff) {
    page.section("OPTIONS");
    for option in visible(command).filter(|arg| !arg.is_positional()) {
        page.item(&written(option, ", "));
        described(option, page);
    }
}

/// The exit codes; the general ones if the command's help has none.
fn exit_status(help: &Help, page: &mut Roff) {
    page.section("EXIT STATUS");
    let codes = help.codes.as_deref().unwrap_or("0 done; 1 failed; 2 wrong arguments");
    for code in codes.trim_end_matches('.').split("; ") {
        let (number, meaning) = code.split_once(' ').unwrap_or((code, ""));
        page.item(&bold(number));
        page.text(&format!("{meaning}."));
    }
}

fn see_also(words: &[&str], commands: &[&Command], page: &mut Roff) {
    let mut names: Vec<String> = match words {
        [_] => Vec::new(),
        [above @ .., _] => vec![above.join("-")],
        [] => Vec::new(),
    };
    names.extend(commands.iter().map(|below| format!("tactus-{}", rest(words, below.get_name()))));
    let names = names.iter().map(|name| format!("{}(1)", bold(name)));
    let names: Vec<_> = names.chain([format!("{}(5)", bold("tactus.toml"))]).collect();
    page.line(&names.join(", "));
}

const ENVIRONMENT: [(&str, &str); 5] = [
    ("TACTUS_LOG", "The log level on standard error: warn, info or debug."),
    ("TACTUS_TOKEN", "The token for commands that change something; --token-file overrides it."),
    ("SSL_CERT_FILE", "Certificate authorities to trust instead of the system's."),
    (
        "http_proxy, https_proxy, all_proxy, no_proxy",
        "Proxies for the commands that contact a server, as for curl.",
    ),
    ("NO_COLOR", "When set and not empty, output is plain text."),
];

const FILES: [(&str, &str); 3] = [
    ("/etc/tactus.toml", "The usual place of the configuration; it is read only with --config."),
    ("DIR/.tactus", "The server's own files in each served directory; they are never served."),
    (
        "$XDG_STATE_HOME/tactus/uploads",
        "Unfinished uploads, which put resumes; by default below ~/.local/state.",
    ),
];

/// The text after the options, by section.
#[derive(Default)]
struct Help {
    description: Vec<String>,
    examples: Option<String>,
    codes: Option<String>,
}

impl Help {
    fn of(command: &Command) -> Self {
        let text = command.get_after_long_help().or_else(|| command.get_after_help());
        let text = text.map(ToString::to_string).unwrap_or_default();
        let mut help = Self::default();
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
            if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
                let lines = examples.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
                help.examples = Some(lines.collect::<Vec<_>>().join("\n"));
            } else if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
                help.codes = Some(codes.split_whitespace().collect::<Vec<_>>().join(" "));
            } else if !paragraph.starts_with("Environment: ") {
                help.description.push(paragraph.to_owned());
            }
        }
        help
    }
}

/// The name line continues after a dash, in lower case.
fn lowered(about: &str) -> String {
    let mut letters = about.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}
