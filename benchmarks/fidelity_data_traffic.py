# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Conversations for the fidelity benchmark: traffic of no lasting worth, with facts planted in it. Made from a seed."""

# Word lists read better as words between commas than as one string a line.
# ruff: noqa: E501, SIM905

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fidelity_data import DECOYS, KINDS, RULES
from haystack.dataclasses import ChatMessage, ChatRole, ToolCall

from haystack_compaction import pin

LANGUAGES = ("en", "de", "zh")
POSITIONS = {"top": (0.02, 0.15), "middle": (0.4, 0.6), "end": (0.78, 0.9)}

_KEY = re.compile(r"\[\[(.*?)\]\]")

_THINGS = {
    "en": "billing service,customer portal,data warehouse,staging cluster,login page,search index,price list,mail relay,"
    "payment gateway,wiki,sensor network,archive,booking engine,loyalty program,catalogue,print server,map viewer",
    "de": "der Abrechnungsdienst,das Kundenportal,das Datenlager,der Testverbund,die Anmeldeseite,der Suchindex,"
    "die Preisliste,das Mailrelais,der Zahlungsweg,das Wiki,das Sensornetz,das Archiv,der Katalog,der Druckserver",
    "zh": "计费服务,客户门户,数据仓库,测试集群,登录页面,搜索索引,价目表,邮件中继,支付网关,知识库,传感器网络,档案库,商品目录,打印服务器",
}
_TOPICS = {
    "en": "solar panels,parking,onboarding,the trade fair,insurance,travel costs,the summer party,packaging,hiring,"
    "noise levels,the museum tour,recycling,the bicycle scheme,the choir,heating,first aid,the newsletter,catering",
    "de": "Solardächer,Parkplätze,Einarbeitung,die Messe,Versicherungen,Reisekosten,das Sommerfest,Verpackung,"
    "Lärmschutz,die Museumsführung,Wertstoffe,das Dienstrad,der Chor,Heizung,Erste Hilfe,der Rundbrief",
    "zh": "太阳能板,停车,新人培训,展会,保险,差旅,夏日聚会,包装,招聘,噪音,博物馆参观,回收,自行车计划,合唱团,供暖,急救,通讯",
}
_FIRST = "Mira,Jonas,Aiko,Priya,Lars,Chloe,Tariq,Ines,Yusuf,Greta,Paolo,Nadia,Emil,Farah,Hugo,Leila".split(",")
_LAST = "Okafor,Lindqvist,Brandt,Moreau,Castellano,Nakamura,Petrov,Albrecht,Siddiqui,Varga,Keller,Duarte".split(",")
_CITIES = (
    "Lisbon,Tampere,Graz,Leipzig,Osaka,Porto,Ghent,Valencia,Bergen,Cork,Zagreb,Tallinn,Bologna,Utrecht,Basel,Malmö,"
    "Krakow,Nantes,Aarhus,Riga,Verona,Dresden,Split,Turku,Girona,Linz,Bremen,Sofia,Vilnius,Antwerp,Lyon,Bath"
).split(",")
_TOOLS = (
    "Inkspire,Quarry,Tabulon,Fernwerk,Mossdesk,Oxbow,Pailgrid,Rundeck,Silverpoint,Trellis,Umbra,Vantage,Wicker,Yarrow,"
    "Zephyr,Brindle,Cobalt,Dovetail,Everline,Flintbox,Gantry,Harrow,Isolde,Juniper,Kestrel,Lodestar,Marlin,Nettle"
).split(",")
_ERRORS = (
    "relation orders_{n} does not exist,ECONNRESET on shard {n},checksum mismatch in block {n},"
    "quota exceeded for tenant {n},cannot lock row {n},schema drift at field {n},unexpected token at column {n}"
).split(",")


@dataclass
class Fact:
    """
    Something that was planted.

    :param kind: One of the kinds, "decoy", or "pinned".
    :param position: "top", "middle" or "end".
    :param keys: The strings that must survive, all of them.
    :param stale: The value that a correction took the place of, empty for other kinds.
    :param known_in_round: The round before which it was said at the latest.
    """

    kind: str
    position: str
    keys: list[str]
    stale: str = ""
    known_in_round: int = 1

    def survives(self, text: str) -> bool:
        """Whether the text has all that matters of the fact, letter by letter."""
        return all(key in text for key in self.keys)

    def resolved(self, text: str) -> bool:
        """Whether the text has the newest value and no longer the old one."""
        return self.survives(text) and not re.search(rf"(?<!\w){re.escape(self.stale)}(?!\w)", text, re.ASCII)


@dataclass
class Planted:
    """
    A conversation, what was planted in it, and what comes after it round by round.

    :param messages: The conversation.
    :param facts: What was planted, decoys included.
    :param rounds: The traffic of later rounds.
    """

    messages: list[ChatMessage]
    facts: list[Fact]
    rounds: list[list[ChatMessage]] = field(default_factory=list)


class Values:
    """Draws values for the slots of phrasings; a name is never drawn twice."""

    def __init__(self, random: Random, language: str) -> None:
        self._random = random
        self._language = language
        self._unused = {
            "person": [f"{first} {last}" for first in _FIRST for last in _LAST],
            "city": list(_CITIES),
            "tool": list(_TOOLS),
            "thing": _THINGS[language].split(","),
            "topic": _TOPICS[language].split(","),
        }

    def draw(self, slot: str) -> str:
        """A value for a slot."""
        random = self._random
        if slot in self._unused:
            unused = self._unused[slot]
            return unused.pop(random.randrange(len(unused))) if unused else f"{slot} {random.randint(211, 989)}"
        word = random.choice("atlas,beta,cedar,delta,ember,falcon,garnet,helix,indigo,jade,krill,lumen".split(","))
        number = random.randint(211, 989)
        return {
            "path": lambda: (
                f"/{random.choice(['srv', 'var/lib', 'home/ops', 'mnt'])}/{word}/{word}-{number}.{random.choice(['yaml', 'csv', 'db'])}"
            ),
            "url": lambda: (
                f"https://{word}{number}.example.{random.choice(['com', 'org', 'net'])}/v{random.randint(2, 9)}/{word}"
            ),
            "email": lambda: f"{word}.{number}@example.{random.choice(['com', 'org'])}",
            "id": lambda: f"{random.choice(['OPS', 'INV', 'CX', 'RB', 'T'])}-{random.randint(10000, 99999)}",
            "hash": lambda: f"{random.getrandbits(48):012x}",
            "amount": lambda: (
                f"{random.choice(['$', '€', ''])}{random.randint(2, 98)},{random.randint(100, 999)}{random.choice(['.50', ''])}"
            ),
            "date": lambda: f"2027-{random.randint(1, 12):02}-{random.randint(1, 28):02}",
            "time": lambda: f"{random.randint(6, 22)}:{random.choice(['05', '20', '35', '50'])}",
            "version": lambda: f"{random.randint(2, 19)}.{random.randint(2, 30)}.{random.randint(2, 30)}",
            "port": lambda: str(random.randint(20000, 60000)),
            "host": lambda: f"{word}-{number}.internal",
            "number": lambda: str(number),
            "error": lambda: random.choice(_ERRORS).format(n=number),
        }[slot]()


def filled(phrasing: str, values: dict[str, str]) -> tuple[str, list[str]]:
    """The phrasing with its values, and the parts of it that must survive."""
    text = phrasing.format(**values)
    return _KEY.sub(r"\1", text), _KEY.findall(text)


def planted(
    seed: int, *, language: str, style: str, make_traffic: "MakeTraffic", size: int, held_out: bool, rounds: int
) -> Planted:
    """
    Make a conversation with one fact of each kind at each position, decoys, and a pinned rule at one of the positions.

    :param seed: Whatever is random follows from it.
    :param language: One of `LANGUAGES`.
    :param style: The name of the kind of traffic.
    :param make_traffic: Makes the traffic.
    :param size: The number of messages.
    :param held_out: Whether to use the phrasings that the methods were not developed on.
    :param rounds: How many compactions follow; there is new traffic before each but the first.
    :returns: The conversation.
    """
    random = Random(f"{seed} {language} {style} {size} {held_out}")
    values = Values(random, language)
    # No phrasing comes twice in a conversation: the second would read like a correction of the first.
    phrasings = {kind: random.sample(some[language][held_out::2], len(POSITIONS)) for kind, some in KINDS.items()}
    pinned = next(rule for rule in RULES[language][held_out::2] if rule not in phrasings["rule"])
    decoys = random.sample(DECOYS[language], min(len(DECOYS[language]), 3 * len(POSITIONS)))
    traffic = make_traffic(random, language)
    result = Planted(traffic.messages(size), [])
    result.rounds = [traffic.messages(max(size * 2 // 5, 10)) for _ in range(rounds - 1)]
    for position, (low, high) in POSITIONS.items():
        for kind in KINDS:
            place = int(random.uniform(low, high) * size)
            if kind == "correction":
                _plant_correction(result, random, values, position, place, phrasings[kind].pop())
                continue
            text, keys = drawn(values, phrasings[kind].pop())
            speaker = {"tool_result": "tool", "rule": "user", "preference": "user"}.get(kind) or random.choice(
                ["user", "assistant", "user"]
            )
            _say(result.messages, random, speaker, text, place)
            result.facts.append(Fact(kind, position, keys))
        for _ in range(min(3, len(decoys))):
            text, _keys = drawn(values, decoys.pop())
            _say(
                result.messages,
                random,
                random.choice(["user", "assistant"]),
                text,
                int(random.uniform(low, high) * size),
            )
            result.facts.append(Fact("decoy", position, [text]))
    # Last, so that all else is what it would be without it.
    position, (low, _high) = list(POSITIONS.items())[seed % len(POSITIONS)]
    text, keys = drawn(values, pinned)
    _say_pinned(result.messages, text, int(low * size))
    result.facts.append(Fact("pinned", position, keys))
    return result


def drawn(values: Values, phrasing: str) -> tuple[str, list[str]]:
    """The phrasing with values drawn for its slots, and the parts of it that must survive."""
    return filled(phrasing, {slot: values.draw(slot) for slot in _slots(phrasing)})


def _slots(phrasing: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"(?<!\{)\{(\w+)\}", phrasing)))


def _plant_correction(
    result: Planted, random: Random, values: Values, position: str, place: int, phrasing: tuple[str, str]
) -> None:
    before, after = phrasing
    old = {slot: values.draw(slot) for slot in _slots(before)}
    changed = _slots(_KEY.findall(after)[0])[0]
    new = {**old, changed: values.draw(changed)}
    while new[changed] == old[changed]:
        new[changed] = values.draw(changed)
    _say(result.messages, random, "user", filled(before, old)[0], place)
    text, keys = filled(after, new)
    later = position == "end" and bool(result.rounds)
    if later:
        _say(result.rounds[0], random, "user", text, len(result.rounds[0]) // 2)
    else:
        size = len(result.messages)
        _say(result.messages, random, "user", text, min(place + max(size // 6, 4), size - 4))
    result.facts.append(Fact("correction", position, keys, old[changed], known_in_round=2 if later else 1))


def _say(messages: list[ChatMessage], random: Random, speaker: str, text: str, place: int) -> None:
    """Put a text into the message of a speaker that is nearest to a place: before, after or instead of what it says."""
    roles = [message.role.value for message in messages]
    if speaker == "tool" and "tool" not in roles:
        speaker = "assistant"
    # The last user message is the current task, which no strategy may touch.
    last_user = max(index for index, role in enumerate(roles) if role == "user")
    candidates = [index for index, role in enumerate(roles) if role == speaker and index != last_user]
    index = min(candidates, key=lambda index: (abs(index - place), index))
    messages[index] = _with_text(messages[index], text, random)


def _say_pinned(messages: list[ChatMessage], text: str, place: int) -> None:
    """Put a pinned message of the user in front of the one that is nearest to a place."""
    candidates = [index for index, message in enumerate(messages) if message.is_from(ChatRole.USER)]
    messages.insert(min(candidates, key=lambda index: (abs(index - place), index)), pin(ChatMessage.from_user(text)))


def _with_text(message: ChatMessage, text: str, random: Random) -> ChatMessage:
    if message.tool_call_results:
        result = message.tool_call_results[0]
        whole = text if random.random() < 0.5 else f"{result.result}\n{text}"
        return ChatMessage.from_tool(whole, origin=result.origin)
    old = message.text or ""
    space = "" if re.search(r"[\u4e00-\u9fff]", text) else " "
    whole = f"{text}{space}{old}" if random.random() < 0.5 else f"{old}{space}{text}"
    if message.role.value == "assistant":
        return ChatMessage.from_assistant(whole.strip(), tool_calls=message.tool_calls)
    return ChatMessage.from_user(whole.strip())


_NOUNS = {
    "en": "tide,market,bridge,garden,engine,report,river,budget,painting,harbour,ticket,storm,recipe,novel,port,forest,"
    "camera,workshop,violin,deadline,orchard,password,glacier,theory,blanket,server,lantern,museum,contract,island,"
    "invoice,telescope,bakery,version,meadow,archive,compass,festival,filter,canal,schedule,pottery,signal,library",
    "de": "Gezeiten,Markt,Brücke,Garten,Motor,Bericht,Fluss,Haushalt,Gemälde,Hafen,Fahrkarte,Sturm,Rezept,Roman,Anschluss,"
    "Wald,Kamera,Werkstatt,Geige,Frist,Obstgarten,Kennwort,Gletscher,Theorie,Decke,Rechner,Laterne,Museum,Vertrag,Insel,"
    "Rechnung,Fernrohr,Bäckerei,Fassung,Wiese,Archiv,Kompass,Fest,Filter,Kanal,Zeitplan,Töpferei,Signal,Bücherei",
    "zh": "潮汐,市场,桥梁,花园,发动机,报告,河流,预算,绘画,港口,车票,风暴,菜谱,小说,端口,森林,相机,工坊,小提琴,期限,果园,"
    "密码,冰川,理论,毯子,服务器,灯笼,博物馆,合同,岛屿,发票,望远镜,面包店,版本,草地,档案,指南针,节日,滤镜,运河,日程,陶器",
}
_QUALITIES = {
    "en": "old,quiet,bright,heavy,common,useful,strange,early,narrow,famous,simple,modern,cold,local,gentle,complex",
    "de": "alt,ruhig,hell,schwer,üblich,nützlich,seltsam,früh,schmal,berühmt,einfach,modern,kalt,örtlich,sanft,komplex",
    "zh": "古老,安静,明亮,沉重,常见,有用,奇怪,早期,狭窄,著名,简单,现代,寒冷,本地,温和,复杂",
}
_QUESTIONS = {
    "en": [
        "What is the difference between a {a} and a {b}?",
        "How does a {q} {a} work?",
        "Can you tell me about the {a}?",
        "Why do people like the {q} {a} so much?",
        "Could you explain the {a} once more?",
        "And what about the {b}?",
        "Is a {a} always {q}?",
        "Who invented the {a}?",
        "I was reading about the {a} on the bus this morning.",
        "My sister never liked the {q} {a}, she says.",
        "That reminds me of a {b} near the {a}.",
        "Thanks, that was helpful!",
        "Interesting, go on.",
        "Hm, the {a} again.",
        "I saw {n} of them last week.",
        "Let's talk about the {a} and the {b} for a moment.",
        "Please compare a {a} with a {q} {b}.",
    ],
    "de": [
        "Was ist der Unterschied zwischen {a} und {b}?",
        "Wie funktioniert das mit {a}?",
        "Erzähl mir etwas über {a}.",
        "Warum finden alle {a} so {q}?",
        "Kannst du {a} noch einmal erklären?",
        "Und was ist mit {b}?",
        "Ist {a} immer {q}?",
        "Heute früh habe ich im Bus etwas über {a} gelesen.",
        "Meine Schwester mochte {a} nie.",
        "Das erinnert mich an {b} bei {a}.",
        "Danke, das hat geholfen!",
        "Spannend, weiter.",
        "Neulich sah ich {n} davon.",
    ],
    "zh": [
        "{a}和{b}有什么区别？",
        "{q}的{a}是怎么运作的？",
        "跟我讲讲{a}吧。",
        "为什么大家都喜欢{q}的{a}？",
        "能再解释一下{a}吗？",
        "那{b}呢？",
        "{a}总是{q}的吗？",
        "今天早上在车上看到一篇讲{a}的文章。",
        "我姐姐从来不喜欢{a}。",
        "这让我想起{a}旁边的{b}。",
        "谢谢，很有帮助！",
        "有意思，继续。",
        "上周我见过{n}个。",
    ],
}
_ANSWERS = {
    "en": [
        "A {a} is {q} because the {b} around it is {q2}.",
        "In most cases the {a} depends on the {b}.",
        "You will find the {q} {a} in about {n} towns.",
        "Historically, every {a} began as a {q} {b}.",
        "It is worth noting that the {a} must never be confused with the {b}.",
        "Experts prefer the {q} {a} to the {b}.",
        "This is why the {a} is often called {q}.",
        "Around {n} percent of all people have seen a {q} {a}.",
        "Of course, a {b} can be {q2} too.",
        "The short answer: the {a} is mostly about the {b}.",
        "There are {n} kinds of {a}, and each is {q}.",
        "Without the {b}, no {a} would be {q}.",
        "Let me know if you want more on the {a}!",
        "Good question!",
        "Some say the {a} is {q}, others disagree.",
        "The {q2} version of the {a} was decided upon in the year {y}.",
        "As a rule, a {q} {b} costs {n} coins.",
    ],
    "de": [
        "{a} gilt als {q}, weil {b} eher {q2} ist.",
        "Meist hängt {a} von {b} ab.",
        "Man findet {a} in etwa {n} Orten.",
        "Geschichtlich begann {a} als {b}.",
        "Man darf {a} nie mit {b} verwechseln.",
        "Fachleute bevorzugen {a}.",
        "Deshalb nennt man {a} oft {q}.",
        "Rund {n} Prozent kennen {a}.",
        "Natürlich kann auch {b} {q2} sein.",
        "Kurz gesagt geht es bei {a} um {b}.",
        "Es gibt {n} Arten von {a}, und jede ist {q}.",
        "Gute Frage!",
        "Sag Bescheid, wenn du mehr über {a} wissen willst!",
        "Im Jahr {y} wurde beschlossen, {a} sei {q}.",
    ],
    "zh": [
        "{a}之所以{q}，是因为{b}很{q2}。",
        "多数情况下{a}取决于{b}。",
        "大约{n}个城镇有{a}。",
        "历史上{a}起源于{b}。",
        "注意不要把{a}和{b}混为一谈。",
        "专家更喜欢{q}的{a}。",
        "所以人们常说{a}很{q}。",
        "大约百分之{n}的人见过{a}。",
        "当然，{b}也可以很{q2}。",
        "简单说，{a}主要和{b}有关。",
        "{a}有{n}种，每一种都{q}。",
        "好问题！",
        "想多了解{a}就告诉我！",
        "{y}年人们决定{a}必须{q}。",
    ],
}


class Chat:
    """Questions and answers that nobody will need again."""

    def __init__(self, random: Random, language: str) -> None:
        self.random = random
        self.language = language
        self._nouns = _NOUNS[language].split(",")
        self._qualities = _QUALITIES[language].split(",")

    def messages(self, size: int) -> list[ChatMessage]:
        """So many messages, the last one from the user."""
        said: list[ChatMessage] = []
        while len(said) < size - 1:
            said.append(ChatMessage.from_user(self.words(_QUESTIONS, self.random.randint(1, 3))))
            said.append(ChatMessage.from_assistant(self.words(_ANSWERS, self.random.randint(3, 9))))
        return [*said, ChatMessage.from_user(self.words(_QUESTIONS, 1))]

    def words(self, patterns: dict[str, list[str]], number: int) -> str:
        """So many sentences about something."""
        random = self.random
        topic = random.choice(self._nouns)
        sentences = []
        for pattern in random.sample(patterns[self.language], number):
            a, b = random.sample(self._nouns, 2)
            q, q2 = random.sample(self._qualities, 2)
            a = topic if random.random() < 0.6 else a
            sentences.append(
                pattern.format(a=a, b=b, q=q, q2=q2, n=random.randint(3, 99), y=random.randint(1400, 1999))
            )
        return ("" if self.language == "zh" else " ").join(sentences)


class Agent(Chat):
    """Runs of tool calls whose output is read once."""

    def messages(self, size: int) -> list[ChatMessage]:
        """So many messages or one more, in turns of several steps."""
        said: list[ChatMessage] = []
        while len(said) < size:
            said.append(ChatMessage.from_user(self.words(_QUESTIONS, self.random.randint(1, 2))))
            for _ in range(self.random.randint(2, 7)):
                said.extend(self._step(len(said)))
            said.append(ChatMessage.from_assistant(self.words(_ANSWERS, self.random.randint(1, 3))))
        said.append(ChatMessage.from_user(self.words(_QUESTIONS, 1)))
        return [*said, *self._step(len(said))]

    def _step(self, number: int) -> list[ChatMessage]:
        random = self.random
        name, arguments, output = random.choice(
            [self._read_file, self._run_tests, self._search, self._list_files, self._read_log, self._query]
        )()
        call = ToolCall(tool_name=name, arguments=arguments, id=f"call_{number}_{random.randint(0, 10**9)}")
        remark = self.words(_ANSWERS, 1) if random.random() < 0.5 else None
        return [ChatMessage.from_assistant(remark, tool_calls=[call]), ChatMessage.from_tool(output, origin=call)]

    def _name(self) -> str:
        return f"{self.random.choice(_NOUNS['en'].split(','))}_{self.random.choice(_QUALITIES['en'].split(','))}"

    def _read_file(self) -> tuple[str, dict, str]:
        lines = []
        for _ in range(self.random.randint(4, 18)):
            name, other = self._name(), self._name()
            lines.append(
                self.random.choice(
                    [
                        f"def {name}({other}):",
                        f"    return {name}({self.random.randint(1, 99)})",
                        f"    if {name} is None:",
                        f'        raise ValueError(f"{other} missing")',
                        f"import {name}",
                        f"    {name} = {other}[{self.random.randint(0, 9)}]",
                        f"    # {self.words(_ANSWERS, 1)}",
                    ]
                )
            )
        return "read_file", {"path": f"src/{self._name()}.py"}, "\n".join(lines)

    def _run_tests(self) -> tuple[str, dict, str]:
        lines = [
            f"tests/test_{self._name()}.py::test_{self._name()} {self.random.choice(['PASSED', 'PASSED', 'FAILED'])}"
            for _ in range(self.random.randint(4, 15))
        ]
        return (
            "run_tests",
            {"filter": self._name()},
            "\n".join([*lines, f"{len(lines)} tests in {self.random.randint(1, 90)}s"]),
        )

    def _search(self) -> tuple[str, dict, str]:
        hits = [
            {
                "id": f"doc-{self.random.randint(1000, 9999)}",
                "title": self.words(_QUESTIONS, 1),
                "score": round(self.random.random(), 3),
            }
            for _ in range(self.random.randint(2, 6))
        ]
        return "search", {"query": self._name()}, json.dumps({"hits": hits}, ensure_ascii=False)

    def _list_files(self) -> tuple[str, dict, str]:
        files = [f"/opt/{self._name()}/{self._name()}.txt" for _ in range(self.random.randint(5, 20))]
        return "list_files", {"folder": f"/opt/{self._name()}"}, "\n".join(files)

    def _read_log(self) -> tuple[str, dict, str]:
        lines = [
            f"2026-{self.random.randint(1, 12):02}-{self.random.randint(1, 28):02} {self.random.choice(['INFO', 'WARN', 'DEBUG'])} "
            f"{self._name()} took {self.random.randint(2, 190)} ms trace={self.random.getrandbits(32):08x}"
            for _ in range(self.random.randint(4, 16))
        ]
        return "read_log", {"service": self._name()}, "\n".join(lines)

    def _query(self) -> tuple[str, dict, str]:
        rows = [
            {
                "sku": f"SKU-{self.random.randint(1000, 9999)}",
                "name": self._name(),
                "stock": self.random.randint(0, 150),
            }
            for _ in range(self.random.randint(2, 8))
        ]
        return "query", {"sql": f"select * from {self._name()}"}, json.dumps(rows)


class Transcripts:
    """Real conversations, one after the other."""

    def __init__(self, random: Random, folder: Path) -> None:
        self._conversations = [
            [ChatMessage.from_dict(message) for message in json.loads(line)["messages"]]
            for file in sorted(folder.glob("*.jsonl"))
            for line in file.read_text("utf-8").splitlines()
        ]
        random.shuffle(self._conversations)
        self._next = 0

    def messages(self, size: int) -> list[ChatMessage]:
        """At least so many messages, up to the next one from the user."""
        said: list[ChatMessage] = []
        while len(said) < size:
            conversation = self._conversations[self._next % len(self._conversations)]
            self._next += 1
            said.extend(message for message in conversation if not message.is_from(ChatRole.SYSTEM))
        end = next((index for index in range(size, len(said)) if said[index].is_from(ChatRole.USER)), len(said) - 1)
        return said[: end + 1]


#: Makes the traffic of a conversation, from a source of randomness and a language.
MakeTraffic = Callable[[Random, str], Any]
STYLES: dict[str, MakeTraffic] = {"chat": Chat, "agent": Agent}
