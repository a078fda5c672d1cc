-- Kinds of images, with the numbers that MusicBrainz gives them.

INSERT INTO cover_art_archive.art_type (id, name) VALUES
    (1, 'Front'), (2, 'Back'), (3, 'Booklet'), (4, 'Medium'), (5, 'Obi'), (6, 'Spine'), (7, 'Track'), (8, 'Other'),
    (9, 'Tray'), (10, 'Sticker'), (11, 'Poster'), (12, 'Liner'), (13, 'Watermark'), (14, 'Raw/Unedited'),
    (15, 'Matrix/Runout'), (48, 'Top'), (49, 'Bottom');

INSERT INTO event_art_archive.art_type (id, name) VALUES (1, 'Poster');
