//! Plans a title before it is sent: its times, its rate and its duration.
//!
//! Promise: nothing is reserved and nothing is sent.

use super::*;

impl Runner {
    /// The rate to reserve, the plan, and the duration of one turn.
    pub(super) async fn plan(
        &self,
        title: &OpenTitle,
        path: &RequestPath,
        content: &Content,
    ) -> Result<(BitRate, Plan, Duration), String> {
        let Content { bytes: range, kind } = content;
        let framing = match kind {
            ContentKind::Packets(framing) => framing,
            ContentKind::Samples { .. } => {
                let rate = kind.rate().expect("samples have one");
                let lasts = rate.time_for(Bytes(range.end - range.start));
                return Ok((rate, Plan::default(), Duration::from_nanos(lasts.0)));
            }
        };
        let channel = &self.channel;
        let index = title::index(&self.shared, title, path).await?;
        let block = self.shared.broker.block_of(title.volume);
        let known = index.as_ref().ok().and_then(|index| {
            let (plan, rate) = Plan::of(index, range.clone(), block)?;
            Some((index, plan, rate))
        });
        let line =
            known.as_ref().and_then(|(index, ..)| Polyline::of(index, range.start, range.end));
        let ticks = line.as_ref().map(Polyline::duration);
        let of_rate =
            |rate: BitRate| Duration::from_nanos(rate.time_for(Bytes(range.end - range.start)).0);
        // A tick of 27 MHz is 1000/27 ns.
        let own =
            |rate| ticks.map_or(of_rate(rate), |ticks| Duration::from_nanos(ticks.0 / 27 * 1000));
        let is_single = self.rundown.is_single() && self.now.is_none() && self.before.is_none();
        // A single title, sent once, is not changed. Its counters are tracked in case another title
        // follows.
        let keeps = |plan: Plan| match is_single {
            true => Plan { restamping: None, counting: Some(Counting::default()), ..plan },
            false => plan,
        };
        match (channel.stuff, channel.rate, known) {
            (Some(stuff), _, Some((index, plan, rate))) => {
                let fastest = index.rates().map_or(rate, |rates| rates.max);
                title::check_stuffing(stuff, fastest)?;
                Ok((rate, plan.stuffed(stuff), own(rate)))
            }
            (Some(_), _, None) => {
                let why =
                    index.err().map_or("its duration is zero".into(), |fault| fault.to_string());
                Err(title::unknown_positions(&why))
            }
            (None, Auto::Auto, Some((_, plan, rate))) => Ok((rate, keeps(plan), own(rate))),
            // Not paced by its PCR, or without one: counters continue, and clocks advance by the
            // duration of a turn.
            (None, ..) => {
                let restamping = Some(Restamping { turn: ticks, ..Restamping::default() });
                let rate = title::rate(&self.shared, channel, title, path).await?;
                let plan = Plan { restamping, ..Plan::default() }.of_packets(*framing);
                Ok((rate, keeps(plan), of_rate(rate)))
            }
        }
    }

    /// Checks a later title in advance.
    pub(super) async fn ask(&self, item: &Item) -> Result<(), String> {
        let path = path_of(&item.path)?;
        let title = self.title(&path).await?;
        let content = content::find(&self.channel, &title).await?;
        self.plan(&title, &path, &content).await.map(drop)
    }

    pub(super) async fn title(&self, path: &RequestPath) -> Result<Arc<OpenTitle>, String> {
        title::find(&self.shared, path).await
    }
}
