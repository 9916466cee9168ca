-- Plays for a while, pauses, goes elsewhere, plays again, and says where it was at each step.
local seconds, elsewhere = 2, 10

local function say(step)
    print(step .. " " .. tostring(mp.get_property_number("time-pos")))
end

local function steps()
    say("played")
    mp.set_property_bool("pause", true)
    mp.add_timeout(1, function()
        say("paused")
        mp.set_property_bool("pause", false)
        mp.add_timeout(seconds, function()
            say("again")
            mp.commandv("seek", elsewhere, "absolute")
            local function arrived()
                mp.unregister_event(arrived)
                mp.add_timeout(seconds, function()
                    say("elsewhere")
                    mp.command("quit 0")
                end)
            end
            mp.register_event("playback-restart", arrived)
        end)
    end)
end

local begun = false
mp.register_event("playback-restart", function()
    if not begun then
        begun = true
        mp.add_timeout(seconds, steps)
    end
end)
