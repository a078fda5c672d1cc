"""One site by Scrapy: text by XPath, links by LinkExtractor. A program: START_URL ITEMS FIGURES CONCURRENCY."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor

#: Bytes of memory, a limit because one hostile page once used all of a machine's.
MEMORY = 4 << 30

SETTINGS = {
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": True,
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "LOG_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
}


class SiteSpider(scrapy.Spider):
    """Follows every link of one host and port, and yields the searchable text of each page."""

    name = "site"

    def __init__(self, start: str, **options: Any) -> None:
        super().__init__(**options)
        self.start_urls = [start]
        # LinkExtractor compares the netloc, which includes the port.
        self.links = LinkExtractor(allow_domains=[urlsplit(start).netloc])
        self.pages = 0
        self.began: tuple[float, float] | None = None
        self.ended = (0.0, 0.0)

    async def start(self) -> Any:
        """Record the time of the first request."""
        self.began = clocks()
        async for request in super().start():
            yield request

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        """Yield the page's text, then a request for each of its links."""
        if not isinstance(response, HtmlResponse):
            return
        text = response.xpath("//body//text()[not(parent::script or parent::style)]").getall()
        yield {
            "url": response.url,
            "title": response.xpath("normalize-space(//title)").get(),
            "headings": [
                " ".join(each.split()) for each in response.xpath("//h1|//h2|//h3").xpath("string()").getall()
            ],
            "text": " ".join(" ".join(text).split()),
        }
        for link in self.links.extract_links(response):
            yield response.follow(link, callback=self.parse)
        self.pages += 1
        self.ended = clocks()


def clocks() -> tuple[float, float]:
    """Return wall and CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), usage.ru_utime + usage.ru_stime


def main(start: str, items: str, figures: str, concurrency: str) -> None:
    """Crawl with `concurrency` requests at the same time.

    Write a JSON line per page to `items`, and `pages`, `wall` and `cpu` (seconds) to `figures`.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    requests = {"CONCURRENT_REQUESTS": int(concurrency), "CONCURRENT_REQUESTS_PER_DOMAIN": int(concurrency)}
    feeds = {items: {"format": "jsonlines", "encoding": "utf8"}}
    process = AsyncCrawlerProcess({**SETTINGS, **requests, "FEEDS": feeds})
    crawler = process.create_crawler(SiteSpider)
    process.crawl(crawler, start=start)
    process.start()
    spider = crawler.spider
    if not isinstance(spider, SiteSpider) or spider.began is None:
        raise SystemExit("the spider did not start")
    wall, cpu = (after - before for after, before in zip(spider.ended, spider.began, strict=True))
    Path(figures).write_text(json.dumps({"pages": spider.pages, "wall": wall, "cpu": cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])
